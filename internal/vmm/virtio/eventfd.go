package virtio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// EventFD is a Linux eventfd counter: KVM signals it (ioeventfd), or is signalled by it (irqfd), or
// both ends are ours.
type EventFD struct {
	fd int

	mu     sync.Mutex
	file   *os.File // fd in the runtime's poller; set by the first Wait, so that irqfds never wake the poller
	closed bool
}

// NewEventFD returns an eventfd with count 0.
func NewEventFD() (*EventFD, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	return &EventFD{fd: fd}, nil
}

// FD returns the descriptor, which the EventFD keeps owning.
func (e *EventFD) FD() int { return e.fd }

// Signal adds one to the counter and wakes the waiter. It never blocks: a counter at its maximum
// stays signalled.
func (e *EventFD) Signal() error {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	for {
		_, err := unix.Write(e.fd, one[:])
		switch err {
		case nil, unix.EAGAIN:
			return nil
		case unix.EINTR:
		default:
			return fmt.Errorf("signal eventfd %d: %w", e.fd, err)
		}
	}
}

// Raise is Signal; it makes an EventFD registered as irqfd an Interrupt.
func (e *EventFD) Raise() error { return e.Signal() }

// Wait parks the calling goroutine, not a thread, until the counter is positive, and clears it. It
// returns os.ErrClosed after Close. One goroutine may wait at a time.
func (e *EventFD) Wait() error {
	f, err := e.pollable()
	if err != nil {
		return err
	}
	var count [8]byte
	if _, err := f.Read(count[:]); err != nil {
		return fmt.Errorf("wait for eventfd: %w", err)
	}
	return nil
}

func (e *EventFD) pollable() (*os.File, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, os.ErrClosed
	}
	if e.file == nil {
		e.file = os.NewFile(uintptr(e.fd), "eventfd")
	}
	return e.file, nil
}

// Close closes the descriptor and ends a Wait. Signal must not be called any more.
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
