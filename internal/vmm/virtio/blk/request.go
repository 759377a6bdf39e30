package blk

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

// Request types (virtio 1.2 §5.2.6).
const (
	typeIn          = 0  // VIRTIO_BLK_T_IN
	typeOut         = 1  // VIRTIO_BLK_T_OUT
	typeFlush       = 4  // VIRTIO_BLK_T_FLUSH
	typeGetID       = 8  // VIRTIO_BLK_T_GET_ID
	typeDiscard     = 11 // VIRTIO_BLK_T_DISCARD
	typeWriteZeroes = 13 // VIRTIO_BLK_T_WRITE_ZEROES
)

// Statuses (virtio 1.2 §5.2.6).
const (
	statusOK          = 0 // VIRTIO_BLK_S_OK
	statusIOErr       = 1 // VIRTIO_BLK_S_IOERR
	statusUnsupported = 2 // VIRTIO_BLK_S_UNSUPP
)

const (
	headerSize  = 16 // struct virtio_blk_req: type, reserved, sector
	segmentSize = 16 // struct virtio_blk_discard_write_zeroes: sector, num_sectors, flags
	flagUnmap   = 1  // in a write-zeroes segment: the space may be given back; else it is merely a hint to keep it
)

var (
	errHeader = errors.New("block request without a whole header")
	errStatus = errors.New("block request without a status byte")
)

// serve carries out the request in c and returns how many bytes the device wrote to it. What goes
// wrong with the disk or its addresses is told to the driver in the request's status. An error
// means that there was no room to tell it, or, if it is ENOSPC, that the request is to be served
// again when the host has room.
func (d *Device) serve(c *virtq.Chain) (written uint32, err error) {
	status := c.CutLast()
	if status == nil {
		return 0, errStatus
	}
	var header [headerSize]byte
	if c.CopyIn(header[:]) != headerSize {
		return 0, errHeader
	}
	kind, sector := binary.LittleEndian.Uint32(header[0:]), binary.LittleEndian.Uint64(header[8:])
	switch kind {
	case typeIn:
		status[0], written = d.read(c, sector)
	case typeOut:
		status[0], err = result(d.write(c, sector))
	case typeFlush:
		status[0] = statusOK // see Overlay
	case typeGetID:
		written = uint32(c.CopyOut(d.serial[:]))
		status[0] = statusOK
	case typeDiscard, typeWriteZeroes:
		status[0], err = result(d.zero(c, kind))
	default:
		status[0] = statusUnsupported
	}
	return written + 1, err
}

// onDisk reports whether n bytes from the sector are on the disk. n is at most 1<<41.
func (d *Device) onDisk(sector, n uint64) bool {
	sectors := d.disk.Size() / sectorSize
	return n%sectorSize == 0 && sector <= sectors && n/sectorSize <= sectors-sector
}

func (d *Device) read(c *virtq.Chain, sector uint64) (status byte, written uint32) {
	if c.WriteLen > maxRequest || !d.onDisk(sector, uint64(c.WriteLen)) {
		return statusIOErr, 0
	}
	if err := d.disk.ReadV(c.Writable, sector*sectorSize); err != nil {
		return statusIOErr, 0
	}
	return statusOK, c.WriteLen
}

// Errors of requests that are not what virtio 1.2 §5.2.6 allows.
var (
	errRange       = errors.New("block request beyond the disk, too long or without data")
	errUnsupported = errors.New("block request with flags that are not supported")
)

func (d *Device) write(c *virtq.Chain, sector uint64) error {
	if c.ReadLen > maxRequest || !d.onDisk(sector, uint64(c.ReadLen)) {
		return errRange
	}
	return d.disk.WriteV(c.Readable, sector*sectorSize)
}

// zero carries out discard and write-zeroes, which carry a list of segments as their data.
func (d *Device) zero(c *virtq.Chain, kind uint32) error {
	if c.ReadLen == 0 || c.ReadLen%segmentSize != 0 || c.ReadLen > maxSegments*segmentSize {
		return errRange
	}
	for c.ReadLen > 0 {
		var s [segmentSize]byte
		c.CopyIn(s[:])
		le := binary.LittleEndian
		sector, count, flags := le.Uint64(s[0:]), le.Uint32(s[8:]), le.Uint32(s[12:])
		if flags&^flagUnmap != 0 || kind == typeDiscard && flags != 0 {
			return errUnsupported // virtio 1.2 §5.2.6.2
		}
		n := uint64(count) * sectorSize
		if count > maxZero || !d.onDisk(sector, n) {
			return errRange
		}
		var err error
		if kind == typeDiscard {
			err = d.disk.Discard(sector*sectorSize, n)
		} else {
			err = d.disk.Zero(sector*sectorSize, n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// result turns an error into a status, which tells the driver nothing about the host. It returns
// ENOSPC as it is: the driver gets no answer yet.
func result(err error) (status byte, full error) {
	switch {
	case err == nil:
		return statusOK, nil
	case errors.Is(err, unix.ENOSPC):
		return statusIOErr, err
	case err == errUnsupported:
		return statusUnsupported, nil
	}
	return statusIOErr, nil
}
