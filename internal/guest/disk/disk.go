// Package disk blocks all writes to the guest's root file system during disk-only branches, and
// returns the space of deleted files to the host.
//
// The host requests both over the agent's control protocol.
package disk

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Limit is the maximum time of a Rest. After this time, the file system wakes without a request, so
// that the guest's programs continue even if the host has crashed.
const Limit = 30 * time.Second

// Requests of ioctl(2) on file systems, from linux/fs.h.
const (
	fiFreeze = 0xc0045877 // FIFREEZE, _IOWR('X', 119, int)
	fiThaw   = 0xc0045878 // FITHAW, _IOWR('X', 120, int)
	fiTrim   = 0xc0185879 // FITRIM, _IOWR('X', 121, struct fstrim_range)
)

// Disk is a mounted file system. Its methods may be called concurrently.
type Disk struct {
	call  func(request uint, arg *[3]uint64) error // makes an ioctl on the file system
	limit time.Duration

	mu      sync.Mutex
	resting *time.Timer // wakes the file system after limit; nil unless the file system is at rest
}

// New returns the file system at path. It does not open anything.
func New(path string) *Disk {
	return &Disk{call: func(request uint, arg *[3]uint64) error { return ioctl(path, request, arg) }, limit: Limit}
}

// Rest discards free blocks, writes everything to the disk, and blocks all writes to the file
// system until Wake is called or Limit has passed. During that time the disk looks as if the file
// system were unmounted.
func (d *Disk) Rest() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.resting != nil {
		return errors.New("freeze the file system: it is frozen already")
	}
	if err := trim(d.call); err != nil {
		return err
	}
	if err := d.call(fiFreeze, nil); err != nil {
		return fmt.Errorf("freeze the file system: %w", err)
	}
	d.resting = time.AfterFunc(d.limit, func() { _ = d.Wake() })
	return nil
}

// Hold delays a Rest until the returned function is called, so that no disk-only branch saves only
// a part of a change to several files. If the file system is at rest, Hold waits until it wakes.
func (d *Disk) Hold() (release func(), err error) {
	for end := time.Now().Add(2 * d.limit); ; time.Sleep(holdEvery) {
		d.mu.Lock()
		if d.resting == nil {
			return d.mu.Unlock, nil
		}
		d.mu.Unlock()
		if time.Now().After(end) {
			return nil, errors.New("the file system is frozen for a disk-only branch: try again")
		}
	}
}

// holdEvery is the interval at which Hold checks whether a rest has ended.
const holdEvery = 5 * time.Millisecond

// Trim discards the free blocks of the file system that is mounted at path.
func Trim(path string) error {
	return trim(func(request uint, arg *[3]uint64) error { return ioctl(path, request, arg) })
}

func trim(call func(request uint, arg *[3]uint64) error) error {
	// Ignore EOPNOTSUPP, because a file system that cannot discard blocks only takes more space.
	if err := call(fiTrim, &[3]uint64{0, math.MaxUint64, 0}); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("discard what is free: %w", err)
	}
	return nil
}

// Wake ends the rest that Rest began: the file system takes writes again. Wake returns an error if
// the file system was no longer at rest, because the guest may then have written to the disk before
// Wake.
func (d *Disk) Wake() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.resting == nil {
		return fmt.Errorf("thaw the file system: it is not frozen, or no longer: the host took more than %v", d.limit)
	}
	d.resting.Stop()
	d.resting = nil
	if err := d.call(fiThaw, nil); err != nil {
		return fmt.Errorf("thaw the file system: %w", err)
	}
	return nil
}

// ioctl makes a request on the file system at path. The kernel reads and writes arg, unless arg is
// nil.
func ioctl(path string, request uint, arg *[3]uint64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(request), uintptr(unsafe.Pointer(arg))); errno != 0 {
		return errno
	}
	return nil
}
