package virtio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/rawcall"
)

// EventFD is a Linux eventfd counter. KVM (ioeventfd) or this process signals it.
type EventFD struct {
	fd int

	mu     sync.Mutex
	file   *os.File // fd for the runtime's poller; set by the first Wait
	raw    syscall.RawConn
	closed bool

	err error              // error of the last call of try
	try func(uintptr) bool // method value, created once so that Wait allocates nothing
}

// NewEventFD returns an eventfd with count 0.
func NewEventFD() (*EventFD, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	return &EventFD{fd: fd}, nil
}

// FD returns the descriptor, which still belongs to the EventFD.
func (e *EventFD) FD() int { return e.fd }

// Signal adds one to the counter and wakes the goroutine in Wait. It never blocks: if the counter
// is at its maximum, Wait returns in any case.
func (e *EventFD) Signal() error {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	if _, err := rawcall.Write(e.fd, one[:]); err != nil && !errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("signal eventfd %d: %w", e.fd, err)
	}
	return nil
}

// Wait blocks the calling goroutine, but no thread, until the counter is positive, and then clears
// the counter. It returns os.ErrClosed after Close. Only one goroutine may wait at a time.
func (e *EventFD) Wait() error {
	raw, err := e.pollable()
	if err != nil {
		return err
	}
	if raw.Read(e.try) != nil {
		return os.ErrClosed
	}
	if e.err != nil {
		return fmt.Errorf("wait for eventfd %d: %w", e.fd, e.err)
	}
	return nil
}

// clear clears the counter. It returns true if Wait can return, because the counter was positive or
// there was an error.
func (e *EventFD) clear(fd uintptr) bool {
	var count [8]byte
	_, e.err = rawcall.Read(int(fd), count[:])
	return !errors.Is(e.err, unix.EAGAIN)
}

func (e *EventFD) pollable() (syscall.RawConn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, os.ErrClosed
	}
	if e.file == nil {
		file := os.NewFile(uintptr(e.fd), "eventfd")
		raw, err := file.SyscallConn()
		if err != nil {
			return nil, err
		}
		e.file, e.raw, e.try = file, raw, e.clear
	}
	return e.raw, nil
}

// Close closes the descriptor and ends a Wait. Signal must not be called afterwards.
func (e *EventFD) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errors.New("close eventfd: already closed")
	}
	e.closed = true
	if e.file != nil {
		return e.file.Close()
	}
	return unix.Close(e.fd)
}
