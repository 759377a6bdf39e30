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
	flagUnmap   = 1  // flag of a write-zeroes segment: the device may free the space
)

var (
	errHeader = errors.New("block request without a whole header")
	errStatus = errors.New("block request without a status byte")
)

// errMore says that a request has further pieces.
var errMore = errors.New("block request is not complete")

// serve executes the next piece of the request in c. The piece begins d.done bytes into the
// request. If further pieces follow, serve returns errMore. If a flush waits for a sync, serve
// returns errSyncing. After the last piece, it returns the number of bytes that the device has
// written to c. If the disk fails or an address is invalid, the request's status tells the driver,
// and serve returns no error. Other errors are of two kinds. If noRoom is true for the error, the
// piece must be served again when the host has space. Any other error means that the status could
// not be written.
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
	if d.disk == nil && kind != typeGetID {
		status[0] = statusIOErr
		return 1, nil
	}
	s := byte(statusOK)
	switch kind {
	case typeIn:
		if s, err = result(d.read(c, sector)); s == statusOK {
			written = c.WriteLen
		}
	case typeOut:
		s, err = result(d.write(c, sector))
	case typeFlush:
		s, err = d.flush()
	case typeGetID:
		written = uint32(c.CopyOut(d.serial[:]))
	case typeDiscard, typeWriteZeroes:
		s, err = result(d.zero(c, kind))
	default:
		s = statusUnsupported
	}
	if err == nil {
		status[0] = s
	}
	return written + 1, err
}

// onDisk reports whether n bytes, beginning at a sector, are within the disk. The caller must not
// pass more than 1<<41 for n.
func (d *Device) onDisk(sector, n uint64) bool {
	sectors := d.size() / sectorSize
	return n%sectorSize == 0 && sector <= sectors && n/sectorSize <= sectors-sector
}

// Errors of requests that violate virtio 1.2 §5.2.6.
var (
	errRange       = errors.New("block request beyond the disk, too long or without data")
	errUnsupported = errors.New("block request with flags that are not supported")
)

func (d *Device) read(c *virtq.Chain, sector uint64) error {
	off, n, left, err := d.piece(c.WriteLen, sector)
	if err != nil {
		return err
	}
	d.views = virtq.Slice(d.views[:0], c.Writable, int(d.done), int(n))
	if err := d.disk.ReadV(d.views, off); err != nil {
		return err
	}
	return d.progress(n, left)
}

func (d *Device) write(c *virtq.Chain, sector uint64) error {
	off, n, left, err := d.piece(c.ReadLen, sector)
	if err != nil {
		return err
	}
	d.views = virtq.Slice(d.views[:0], c.Readable, int(d.done), int(n))
	if err := d.disk.WriteV(d.views, off); err != nil {
		return err
	}
	return d.progress(n, left)
}

// piece returns the next piece of a request that transfers size bytes. The piece has n bytes, and
// begins at the offset off of the disk. piece also returns the number of bytes that remain,
// including the piece. The whole request is checked again for each piece, because a hostile driver
// may have changed the request.
func (d *Device) piece(size uint32, sector uint64) (off, n, left uint64, err error) {
	if size > maxRequest || !d.onDisk(sector, uint64(size)) {
		return 0, 0, 0, errRange
	}
	d.done = min(d.done, uint64(size))
	off, left = sector*sectorSize+d.done, uint64(size)-d.done
	return off, pieceOf(off, left), left, nil
}

// pieceOf returns the length of the next piece of a request. The caller passes the piece's offset
// (off) and the number of bytes that remain (left). Pieces end at cluster boundaries, so that they
// write and discard the same whole clusters as a request that is not divided.
func pieceOf(off, left uint64) uint64 { return min(left, maxPiece-off%maxPiece) }

// progress adds n to the number of processed bytes of a request. The caller passes the number of
// bytes that remained before (left). If bytes still remain, progress returns errMore.
func (d *Device) progress(n, left uint64) error {
	d.done += n
	if n < left {
		return errMore
	}
	return nil
}

// zero executes the next piece of a discard or write-zeroes request, whose data is a list of
// segments.
func (d *Device) zero(c *virtq.Chain, kind uint32) error {
	if c.ReadLen == 0 || c.ReadLen%segmentSize != 0 || c.ReadLen > acceptedSegments*segmentSize {
		return errRange
	}
	for skip := d.done; c.ReadLen > 0; {
		var s [segmentSize]byte
		c.CopyIn(s[:])
		le := binary.LittleEndian
		sector, count, flags := le.Uint64(s[0:]), le.Uint32(s[8:]), le.Uint32(s[12:])
		if flags&^flagUnmap != 0 || kind == typeDiscard && flags != 0 {
			return errUnsupported // the status that virtio 1.2 §5.2.6.2 requires
		}
		size := uint64(count) * sectorSize
		if count > acceptedZero || !d.onDisk(sector, size) {
			return errRange
		}
		if skip >= size {
			skip -= size
			continue
		}
		off, left := sector*sectorSize+skip, size-skip
		n := pieceOf(off, left)
		var err error
		if kind == typeDiscard {
			err = d.disk.Discard(off, n)
		} else {
			err = d.disk.Zero(off, n)
		}
		if err != nil {
			return err
		}
		if err := d.progress(n, left); err != nil || c.ReadLen == 0 {
			return err
		}
		return errMore
	}
	return nil
}

// result converts an error to a status, which reveals nothing about the host. If the error is
// errMore, or noRoom is true for it, the driver gets no response yet, and the second result
// (pending) is the error.
func result(err error) (status byte, pending error) {
	switch {
	case err == nil:
		return statusOK, nil
	case errors.Is(err, errMore) || noRoom(err):
		return statusIOErr, err
	case errors.Is(err, errUnsupported):
		return statusUnsupported, nil
	}
	return statusIOErr, nil
}

// noRoom reports whether err says that the host has no space, or that a disk quota is exhausted.
func noRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
