// Package blk implements the virtio block device (virtio 1.2 §5.2). Its disk is an Overlay, which
// stacks an immutable image, immutable layers and one private top. A device for volumes (NewSlot) may
// have no disk, and its disk may be replaced by a disk of another size.
//
// The transport's goroutine executes requests one at a time, in order, with preadv and pwritev
// between files and guest memory. The package caches nothing, and a quiesced device has no request
// in progress. So a device saves no state except the size of its disk. The package opens no files
// and knows no snapshots.
//
// The device splits a request into pieces of at most maxPiece bytes, so that it can pause after
// each piece. A request that is incomplete, or that found no space on the host, stays in its queue,
// and the device continues later with the next piece. If a snapshot is taken in between, the
// restored device executes the request again from its start. The result is the same, because the
// guest has received no response, and no later request has been executed.
package blk

import (
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"

	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

// Feature bits (virtio 1.2 §5.2.3).
const (
	FSegMax      uint64 = 1 << 2  // VIRTIO_BLK_F_SEG_MAX
	FBlkSize     uint64 = 1 << 6  // VIRTIO_BLK_F_BLK_SIZE
	FFlush       uint64 = 1 << 9  // VIRTIO_BLK_F_FLUSH
	FDiscard     uint64 = 1 << 13 // VIRTIO_BLK_F_DISCARD
	FWriteZeroes uint64 = 1 << 14 // VIRTIO_BLK_F_WRITE_ZEROES
)

const (
	sectorSize = 512 // unit of every sector number (virtio 1.2 §5.2.4), and the logical block size
	queueSize  = 128
	// slotQueueSize is the queue size of a slot. It is smaller than queueSize, because a machine may
	// have several slots, and the guest's kernel allocates memory for each entry, even while the slot
	// is empty.
	slotQueueSize = 64

	// maxRequest is the maximum length of the data of one request, in bytes. Linux drivers stay
	// below 4 MiB.
	maxRequest = 8 << 20

	// maxPiece is the maximum amount of work between two calls of Transport.Wanted, in bytes of the
	// disk. It is a multiple of cluster. Discards determine the limit: a discard that frees many
	// clusters may have to free an extent of the host's file system for each cluster, and this
	// takes long.
	maxPiece = 1 << 20

	// maxHold is the number of bytes after which the device releases the run lock. Then another
	// goroutine can take the lock, for example to reset the device.
	maxHold = 8 << 20

	// pieceCost is a number of bytes that each piece adds to the count for maxHold, because even a
	// piece without data takes time.
	pieceCost = 64 << 10

	// The device announces that a discard or write-zeroes request may have one segment of up to
	// announcedZero sectors (64 MiB).
	announcedZero     = 64 << 20 / sectorSize
	announcedSegments = 1

	// The device accepts such a request if it has at most 16 segments of up to acceptedZero sectors
	// (1 GiB). Earlier releases announced these limits. Drivers in snapshots of those releases
	// still use them, because a driver reads the limits only once.
	acceptedZero     = 1 << 30 / sectorSize
	acceptedSegments = 16
)

// Device is one disk. It implements virtio.Device.
type Device struct {
	disk   *Overlay               // nil if the slot is empty
	slot   bool                   // whether NewSlot made the device
	sync   func([]*os.File) error // syncs files of a slot; tests replace it
	full   func()
	serial [serialSize]byte
	config atomic.Pointer[[configSize]byte] // vCPU threads read it without a lock

	transport virtio.Transport
	queue     *virtq.Queue

	done    uint64   // number of bytes of the first request in the queue that are already processed
	views   [][]byte // reused list of views of guest memory, for one piece
	syncing *syncing // the latest sync whose result flush still needs; nil if there is none
	frozen  int      // number of layers below the top that were tops, and have not been synced since
	changed bool     // see Changed
}

// serialSize is the length of the field for a disk's serial number, in bytes. Shorter serial
// numbers are padded with zeros (virtio 1.2 §5.2.6).
const serialSize = 20

// New returns a device for the given disk, which the device then owns. The guest sees the first 20
// bytes of the serial number (as /dev/disk/by-id/virtio-SERIAL).
//
// If the host's file system has no space for a write, the guest gets no error, because most guests
// would then lose the data. Instead, the write stays in the queue, and the device stops and calls
// full(). The device tries the write again when the driver notifies the device, or at Unquiesce.
// The device may call full() several times, always with the run lock held. The call must not block.
func New(disk *Overlay, serial string, full func()) *Device {
	d := &Device{disk: disk, full: full}
	copy(d.serial[:], serial)
	d.setConfig()
	return d
}

// NewSlot is like New, but the device is for volumes. It has no disk at first, so its capacity is 0
// and its requests fail. After a flush, earlier writes survive a crash of the host; see flush.
func NewSlot(serial string, full func()) *Device {
	d := &Device{slot: true, sync: syncFiles, full: full}
	copy(d.serial[:], serial)
	d.setConfig()
	return d
}

// size returns the size of the disk in bytes, or 0 if the slot is empty.
func (d *Device) size() uint64 {
	if d.disk == nil {
		return 0
	}
	return d.disk.Size()
}

// Empty reports whether the device has no disk.
func (d *Device) Empty() bool { return d.disk == nil }

// queueSize returns the maximum size of the queue.
func (d *Device) queueSize() uint16 {
	if d.slot {
		return slotQueueSize
	}
	return queueSize
}

// configSize is the length of struct virtio_blk_config up to write_zeroes_may_unmap, padded to a
// multiple of 4 bytes (virtio 1.2 §5.2.4).
const configSize = 60

// setConfig sets the configuration space according to the disk.
func (d *Device) setConfig() {
	var c [configSize]byte
	le := binary.LittleEndian
	le.PutUint64(c[0:], d.size()/sectorSize)
	le.PutUint32(c[12:], uint32(d.queueSize())-2) // segments; a request also has a header and a status descriptor
	le.PutUint32(c[20:], sectorSize)
	le.PutUint32(c[36:], announcedZero)      // max_discard_sectors
	le.PutUint32(c[40:], announcedSegments)  // max_discard_seg
	le.PutUint32(c[44:], cluster/sectorSize) // discard_sector_alignment
	le.PutUint32(c[48:], announcedZero)      // max_write_zeroes_sectors
	le.PutUint32(c[52:], announcedSegments)  // max_write_zeroes_seg
	c[56] = 1                                // write_zeroes_may_unmap
	d.config.Store(&c)
}

// Info implements virtio.Device.
func (d *Device) Info() virtio.Info {
	const features = FSegMax | FBlkSize | FFlush | FDiscard | FWriteZeroes
	return virtio.Info{ID: virtio.IDBlock, Features: features, QueueSizes: []uint16{d.queueSize()}}
}

// ReadConfig implements virtio.Device.
func (d *Device) ReadConfig(off uint64, p []byte) {
	clear(p)
	if off < configSize {
		copy(p, d.config.Load()[off:])
	}
}

// Activate implements virtio.Device.
func (d *Device) Activate(t virtio.Transport, queues []*virtq.Queue, _ uint64) error {
	if queues[0] == nil {
		return errors.New("the request queue is not set up")
	}
	d.transport, d.queue = t, queues[0]
	return nil
}

// Reset implements virtio.Device.
func (d *Device) Reset() {
	d.transport, d.queue, d.done, d.views = nil, nil, 0, nil
	d.ignoreSync()
}

// Notify implements virtio.Device.
func (d *Device) Notify() (more bool, err error) {
	if err := d.queue.DisableNotify(); err != nil {
		return false, err
	}
	for served := uint64(0); served < maxHold && !d.transport.Wanted(); {
		c, err := d.queue.Pop()
		if err != nil {
			return false, err
		}
		if c == nil {
			return d.queue.EnableNotify()
		}
		before := d.done
		written, err := d.serve(c)
		served += pieceCost + d.done - before
		switch {
		case errors.Is(err, errMore):
			d.queue.Unpop()
			continue
		case noRoom(err):
			d.queue.Unpop()
			d.full()
			return false, nil
		case errors.Is(err, errSyncing):
			d.queue.Unpop()
			return false, nil // the transport is kicked when the sync ends
		case err != nil:
			return false, err
		}
		d.done = 0
		if err := d.queue.Push(c.Head, written); err != nil {
			return false, err
		}
		// Send an interrupt for each request, if the driver wants one. One interrupt for several
		// requests would come too late, because the next request may have to wait for a disk.
		if err := d.transport.Interrupt(d.queue); err != nil {
			return false, err
		}
	}
	return true, nil
}

var errEmpty = errors.New("the slot is empty")

// Swap is a prepared change of a device's top. Either Commit or Cancel must be called.
type Swap struct {
	device *Device
	swap   *swap
}

// PrepareSwap does those parts of a change of the top that can fail, and changes nothing; see
// Overlay.prepareSwap. So a caller can change the tops of several devices together or not at all.
// Preconditions: the transport is quiesced until Commit or Cancel.
func (d *Device) PrepareSwap(newTop, frozen *os.File) (*Swap, error) {
	if d.disk == nil {
		return nil, errEmpty
	}
	s, err := d.disk.prepareSwap(newTop, frozen)
	if err != nil {
		return nil, err
	}
	return &Swap{d, s}, nil
}

// Commit changes the top. The device then owns the files.
func (s *Swap) Commit() {
	s.swap.commit()
	s.device.frozen++
	s.device.ignoreSync()
}

// Cancel leaves the device unchanged. The caller still owns the files.
func (s *Swap) Cancel() { s.swap.cancel() }

// Merge calls Overlay.Merge. Preconditions: the transport is quiesced.
func (d *Device) Merge(first int, merged *os.File) error {
	if d.disk == nil {
		return errEmpty
	}
	oldest := len(d.disk.layers) - 1 - d.frozen // index of the oldest layer that was not synced
	err := d.disk.Merge(first, merged)
	if err == nil {
		d.frozen = len(d.disk.layers) - 1 - min(oldest, first)
		d.ignoreSync()
	}
	return err
}

// SetDisk replaces the whole disk, and closes the old disk. Unless the device is a slot, both disks
// must have the same size. If disk is nil, the slot becomes empty. If the size of a slot's disk
// changes, the caller must call the transport's ConfigChanged. After an error the device has its
// old disk, and the caller still owns the new disk. No other code of the device may run during the
// call.
func (d *Device) SetDisk(disk *Overlay) error {
	if !d.slot && (disk == nil || disk.Size() != d.disk.Size()) {
		return errors.New("replace disk: the size differs")
	}
	old := d.disk
	d.disk, d.done, d.frozen = disk, 0, 0
	d.forgetSync()
	d.setConfig()
	if old != nil {
		_ = old.Close() // an error is ignored, because the old disk is no longer needed
	}
	return nil
}

// Close closes the disk's files. Preconditions: the transport is closed.
func (d *Device) Close() error {
	if d.disk == nil {
		return nil
	}
	return d.disk.Close()
}
