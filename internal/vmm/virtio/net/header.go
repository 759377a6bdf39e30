package net

import (
	"encoding/binary"

	"github.com/forkd/forkd/internal/proto/frame"
)

// Flags of a header (virtio 1.2 §5.1.6).
const (
	flagNeedsCsum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	flagDataValid = 2 // VIRTIO_NET_HDR_F_DATA_VALID, to the driver only
)

// Kinds of segmentation that a header may request. The device offers no other kinds.
const (
	gsoNone  = 0 // VIRTIO_NET_HDR_GSO_NONE
	gsoTCPv4 = 1 // VIRTIO_NET_HDR_GSO_TCPV4
)

// ethernetBytes is the length of an Ethernet header, and so of the shortest valid frame.
const ethernetBytes = 14

// header is struct virtio_net_hdr_v1 without num_buffers, which is a property of the queue and not
// of the frame.
type header struct {
	flags, gsoType        uint8
	hdrLen, gsoSize       uint16 // in bytes
	csumStart, csumOffset uint16 // in bytes; csumOffset counts from csumStart
}

func decodeHeader(b *[frame.HeaderBytes]byte) header {
	le := binary.LittleEndian
	return header{
		flags:      b[0],
		gsoType:    b[1],
		hdrLen:     le.Uint16(b[2:]),
		gsoSize:    le.Uint16(b[4:]),
		csumStart:  le.Uint16(b[6:]),
		csumOffset: le.Uint16(b[8:]),
	}
}

func (h *header) encode(buffers uint16) (b [frame.HeaderBytes]byte) {
	le := binary.LittleEndian
	b[0], b[1] = h.flags, h.gsoType
	le.PutUint16(b[2:], h.hdrLen)
	le.PutUint16(b[4:], h.gsoSize)
	le.PutUint16(b[6:], h.csumStart)
	le.PutUint16(b[8:], h.csumOffset)
	le.PutUint16(b[10:], buffers)
	return b
}

// fits reports whether h is valid for a frame of n bytes. The parameters csum and tso say whether
// the receiver of the frame completes checksums and splits large frames into segments.
func (h *header) fits(n int, csum, tso bool) bool {
	if n < ethernetBytes || n > frame.MaxFrame {
		return false
	}
	needsCsum := h.flags&flagNeedsCsum != 0
	if needsCsum && (!csum || h.csumStart < ethernetBytes || int(h.csumStart)+int(h.csumOffset)+2 > n) {
		return false
	}
	switch h.gsoType {
	case gsoNone:
		return n <= ethernetBytes+frame.MTU
	case gsoTCPv4:
		return tso && needsCsum && h.gsoSize > 0 && int(h.hdrLen) <= n
	}
	return false
}
