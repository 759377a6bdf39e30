package agent

import (
	"errors"
	"net"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patient is a listener that continues after a temporary error. If a service of the agent ended,
// the agent would end, and with it the guest.
type patient struct{ net.Listener }

// Accept implements net.Listener.
func (l patient) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err == nil || !passes(err) {
			return conn, err
		}
		time.Sleep(acceptPause)
	}
}

// acceptPause is the time until accept is tried again after such an error.
const acceptPause = 10 * time.Millisecond

// passes reports whether an error of accept concerns one connection only, or a lack of memory or
// descriptors (accept(2)).
func passes(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && slices.Contains([]syscall.Errno{
		unix.ECONNABORTED, unix.ECONNRESET, unix.EPROTO, unix.ENOTCONN, unix.ETIMEDOUT,
		unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM,
	}, errno)
}
