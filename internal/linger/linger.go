// Package linger bounds the memory that a peer holds by not reading. The kernel charges data in a
// unix socket to the sender until the peer reads the data or closes its end, even if the sender has
// closed its own end. So this package shuts such a socket down, but keeps it open until nothing is
// queued in it any more. Callers can then count the kept sockets and limit their number.
//
// The package does not wait for a peer. It is only for sockets that no other process shares.
package linger

import (
	"io"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is a unix socket, such as a *net.UnixConn or an *os.File.
type Socket interface {
	syscall.Conn
	io.Closer
}

// Set is the set of kept sockets to one peer. The zero value is empty. Its methods may be called
// concurrently. Once a second, the set closes each socket whose data the peer has read, or whose
// peer has closed its end.
type Set struct {
	mu       sync.Mutex
	kept     []kept
	sweeping bool // whether a timer runs
}

type kept struct {
	Socket
	gone func() // see Close
}

// sweepTime is the time between two looks at the kept sockets.
const sweepTime = time.Second

// Close closes a socket. If the peer has not read all data, Close shuts the socket down and keeps
// it. Neither end can then send, as if the socket were closed, but the peer can still read the
// data. Close drops the data that the peer has sent. The given function is called once, when the
// socket is closed. It may be nil. It must not call methods of the Set.
func (s *Set) Close(c Socket, gone func()) error {
	if gone == nil {
		gone = func() {}
	}
	raw, err := c.SyscallConn()
	if err != nil {
		gone()
		return err
	}
	// Shut down before the look at the queue, so that no data can be written after that look.
	if err := raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }); err != nil {
		gone()
		return err
	}
	if !queued(c) {
		defer gone()
		return c.Close()
	}
	_ = raw.Control(func(fd uintptr) { drain(int(fd)) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, kept{c, gone})
	if !s.sweeping {
		s.sweeping = true
		time.AfterFunc(sweepTime, s.sweep)
	}
	return nil
}

// drain reads and drops the data that a peer has sent, because the kernel charges this data to the
// peer. After a shutdown the peer can send no more. The loop can read far more than the largest
// buffer of a socket holds.
func drain(fd int) {
	p := make([]byte, 64<<10)
	for range 1 << 10 {
		if n, _, err := unix.Recvfrom(fd, p, unix.MSG_DONTWAIT); n <= 0 || err != nil {
			return
		}
	}
}

func (s *Set) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sweeping = s.heldLocked() > 0; s.sweeping {
		time.AfterFunc(sweepTime, s.sweep)
	}
}

// Held returns the number of kept sockets with data that the peer has not read. It closes the other
// kept sockets.
func (s *Set) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heldLocked()
}

func (s *Set) heldLocked() int {
	s.kept = slices.DeleteFunc(s.kept, func(k kept) bool {
		if queued(k.Socket) {
			return false
		}
		_ = k.Close()
		k.gone()
		return true
	})
	return len(s.kept)
}

// queued reports whether data in a socket still waits for the peer to read it. It returns false if
// the socket is closed.
func queued(c Socket) bool {
	bytes := 0
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { bytes, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	}
	return err == nil && bytes > 0
}
