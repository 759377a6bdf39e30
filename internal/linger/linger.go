// Package linger bounds the memory that a peer holds by not reading. The kernel charges data in a
// unix socket to the sender until the peer reads the data or closes its end, even if the sender has
// closed its own end. So this package keeps such a socket, shut down, until nothing is queued in it
// any more, and its user counts the sockets that are kept.
//
// The package does not wait for a peer. It is for sockets that are not shared with other processes.
package linger

import (
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is a unix socket, such as a *net.UnixConn or an *os.File.
type Socket interface {
	syscall.Conn
	io.Closer
}

// Set is the set of the sockets to one peer that are kept. The zero value is empty. Its methods may
// be called concurrently. Once a second, the set closes the sockets that the peer does not hold any
// more, for example because it has ended.
type Set struct {
	Total *atomic.Int64 // number of kept sockets of all sets with this counter; may be nil

	mu       sync.Mutex
	kept     []Socket
	sweeping bool // whether a timer runs
}

// sweepTime is the time between two looks at the kept sockets.
const sweepTime = time.Second

// Close closes a socket. If the peer has not read all data, Close shuts the socket down and keeps
// it: reads and writes of both ends then fail as if it were closed, and the peer can still read the
// data. Close drops the data that the peer has sent.
func (s *Set) Close(c Socket) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	// The shutdown comes first. Data that is written after a look at the queue would not be counted.
	if err := raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }); err != nil {
		return err
	}
	if !queued(c) {
		return c.Close()
	}
	_ = raw.Control(func(fd uintptr) { drain(int(fd)) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, c)
	s.count(1)
	if !s.sweeping {
		s.sweeping = true
		time.AfterFunc(sweepTime, s.sweep)
	}
	return nil
}

// drain reads what a peer has sent, because the kernel charges this data to the peer. After a
// shutdown the peer can send no more. The bound is far above the largest buffer of a socket.
func drain(fd int) {
	p := make([]byte, 64<<10)
	for range 1 << 10 {
		if n, _, err := unix.Recvfrom(fd, p, unix.MSG_DONTWAIT); n <= 0 || err != nil {
			return
		}
	}
}

func (s *Set) count(n int) {
	if s.Total != nil {
		s.Total.Add(int64(n))
	}
}

func (s *Set) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sweeping = s.heldLocked() > 0; s.sweeping {
		time.AfterFunc(sweepTime, s.sweep)
	}
}

// Held returns the number of kept sockets whose data the peer still holds. It closes the others.
func (s *Set) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heldLocked()
}

func (s *Set) heldLocked() int {
	var kept []Socket
	for _, c := range s.kept {
		if queued(c) {
			kept = append(kept, c)
		} else {
			_ = c.Close()
			s.count(-1)
		}
	}
	s.kept = kept
	return len(kept)
}

// queued reports whether the peer holds data of a socket. If the socket is closed, it reports false.
func queued(c Socket) bool {
	bytes := 0
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { bytes, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	}
	return err == nil && bytes > 0
}
