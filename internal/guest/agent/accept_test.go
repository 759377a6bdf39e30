package agent

import (
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// failing is a listener. Each Accept returns the next of its errors; when there are no more, the
// listener is closed.
type failing struct {
	net.Listener
	errs []error
}

func (l *failing) Accept() (net.Conn, error) {
	if len(l.errs) == 0 {
		return nil, net.ErrClosed
	}
	err := l.errs[0]
	l.errs = l.errs[1:]
	return nil, err
}

func TestAcceptGoesOn(t *testing.T) {
	// the form of package vsock
	wrapped := &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", unix.ECONNABORTED)}
	l := &failing{errs: []error{wrapped, unix.ENOMEM, unix.EMFILE}}
	if _, err := (patient{l}).Accept(); !errors.Is(err, net.ErrClosed) || len(l.errs) > 0 {
		t.Errorf("%v, %d errors left", err, len(l.errs))
	}
	l = &failing{errs: []error{unix.EINVAL, unix.ENOMEM}}
	if _, err := (patient{l}).Accept(); !errors.Is(err, unix.EINVAL) || len(l.errs) != 1 {
		t.Errorf("an error that does not pass: %v", err)
	}
}
