package vsock

import "encoding/binary"

// headerSize is the length of struct virtio_vsock_hdr in bytes (virtio 1.2 §5.10.6).
const headerSize = 44

// typeStream is the only socket type that the device supports (VIRTIO_VSOCK_TYPE_STREAM).
const typeStream = 1

// Operations (virtio 1.2 §5.10.6).
const (
	opRequest       = 1 // VIRTIO_VSOCK_OP_REQUEST
	opResponse      = 2 // VIRTIO_VSOCK_OP_RESPONSE
	opRST           = 3 // VIRTIO_VSOCK_OP_RST
	opShutdown      = 4 // VIRTIO_VSOCK_OP_SHUTDOWN
	opRW            = 5 // VIRTIO_VSOCK_OP_RW
	opCreditUpdate  = 6 // VIRTIO_VSOCK_OP_CREDIT_UPDATE
	opCreditRequest = 7 // VIRTIO_VSOCK_OP_CREDIT_REQUEST
)

// Flags of opShutdown. They say what the sender will no longer do (virtio 1.2 §5.10.6.5).
const (
	shutdownReceive = 1
	shutdownSend    = 2
	shutdownBoth    = shutdownReceive | shutdownSend
)

// header precedes the data of every packet.
type header struct {
	srcCID, dstCID   uint64
	srcPort, dstPort uint32
	length           uint32 // length of the data that follows, in bytes
	kind, op         uint16
	flags            uint32
	bufAlloc         uint32 // size of the sender's receive buffer in bytes
	fwdCount         uint32 // number of bytes that the sender has taken from its buffer, modulo 1<<32
}

func (h *header) encode() (b [headerSize]byte) {
	le := binary.LittleEndian
	le.PutUint64(b[0:], h.srcCID)
	le.PutUint64(b[8:], h.dstCID)
	le.PutUint32(b[16:], h.srcPort)
	le.PutUint32(b[20:], h.dstPort)
	le.PutUint32(b[24:], h.length)
	le.PutUint16(b[28:], h.kind)
	le.PutUint16(b[30:], h.op)
	le.PutUint32(b[32:], h.flags)
	le.PutUint32(b[36:], h.bufAlloc)
	le.PutUint32(b[40:], h.fwdCount)
	return b
}

func decodeHeader(b *[headerSize]byte) header {
	le := binary.LittleEndian
	return header{
		srcCID:   le.Uint64(b[0:]),
		dstCID:   le.Uint64(b[8:]),
		srcPort:  le.Uint32(b[16:]),
		dstPort:  le.Uint32(b[20:]),
		length:   le.Uint32(b[24:]),
		kind:     le.Uint16(b[28:]),
		op:       le.Uint16(b[30:]),
		flags:    le.Uint32(b[32:]),
		bufAlloc: le.Uint32(b[36:]),
		fwdCount: le.Uint32(b[40:]),
	}
}
