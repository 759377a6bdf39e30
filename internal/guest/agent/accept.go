package agent

import (
	"errors"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// patient is a listener whose Accept retries after a temporary error. Without a retry, the error
// would end the service, the agent and the guest.
type patient struct{ net.Listener }

func (l patient) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err == nil || !passes(err) {
			return conn, err
		}
		time.Sleep(acceptPause)
	}
}

// fromHost is a listener whose Accept returns only connections of the host, and closes all other
// connections. A guest's kernel may have a loopback device for vsock. Without this check, any
// process of the guest could call the agent through this device.
type fromHost struct{ net.Listener }

func (l fromHost) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if peer, ok := conn.RemoteAddr().(*vsock.Addr); ok && peer.ContextID == agentproto.HostCID {
			return conn, nil
		}
		_ = conn.Close()
	}
}

// acceptPause is the delay before Accept tries again.
const acceptPause = 10 * time.Millisecond

// passes reports whether an error of accept(2) is temporary. A temporary error concerns only one
// connection, or says that memory or descriptors are exhausted.
func passes(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && slices.Contains([]syscall.Errno{
		unix.ECONNABORTED, unix.ECONNRESET, unix.EPROTO, unix.ENOTCONN, unix.ETIMEDOUT,
		unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM,
	}, errno)
}
