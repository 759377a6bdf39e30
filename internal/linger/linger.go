// Package linger bounds the memory that a peer holds by not reading. The kernel charges data in a
// unix socket to the sender until the peer reads the data or closes its end, even if the sender has
// closed its own end. So this package keeps such a socket, shut down, until nothing is queued in it
// any more, and its user counts the sockets that are kept.
//
// The package does not wait for a peer and starts no goroutine. It looks at kept sockets only when
// it is called. It is for sockets that are not shared with other processes.
package linger

import (
	"io"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Socket is a unix socket, such as a *net.UnixConn or an *os.File.
type Socket interface {
	syscall.Conn
	io.Closer
}

// Set is the set of the sockets to one peer that are kept. The zero value is empty. Its methods may
// be called concurrently.
type Set struct {
	mu   sync.Mutex
	kept []Socket
}

// Close closes a socket. If the peer has not read all data, Close shuts the socket down and keeps
// it: reads and writes of both ends then fail as if it were closed, and the peer can still read the
// data.
func (s *Set) Close(c Socket) error {
	if !queued(c) {
		return c.Close()
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if err := raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, c)
	return nil
}

// Held returns the number of kept sockets whose data the peer still holds. It closes the others.
func (s *Set) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var kept []Socket
	for _, c := range s.kept {
		if queued(c) {
			kept = append(kept, c)
		} else {
			_ = c.Close()
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
