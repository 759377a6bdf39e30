package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/rawcall"
)

// forkPort is the listening socket of agentproto.ForkPort.
type forkPort struct {
	file *os.File
	raw  syscall.RawConn

	isPeer func(conn int) bool // reports whether a connection is accepted; nil: all connections are accepted

	// tryAccept is a method value that is made once, so that accept allocates nothing. It stores
	// its result in conn and err.
	tryAccept func(fd uintptr) bool
	conn      int
	err       error
}

// backlog is how many connections may wait. The host opens one connection at a time, but clients
// that gave up may have left other connections.
const backlog = 16

// listenForks opens the socket.
func listenForks(family int, addr unix.Sockaddr) (*forkPort, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := errors.Join(unix.Bind(fd, addr), unix.Listen(fd, backlog)); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	p := &forkPort{file: os.NewFile(uintptr(fd), "fork port")}
	p.tryAccept = func(fd uintptr) bool {
		p.conn, p.err = rawcall.Accept(int(fd), 0)
		return !errors.Is(p.err, unix.EAGAIN)
	}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Close closes the socket; a waiting accept returns an error.
func (p *forkPort) Close() error { return p.file.Close() }

// accept returns the next connection, in blocking mode.
func (p *forkPort) accept() (int, error) {
	for {
		if err := p.raw.Read(p.tryAccept); err != nil {
			return -1, err
		}
		switch {
		case p.err == nil && (p.isPeer == nil || p.isPeer(p.conn)):
			return p.conn, nil
		case p.err == nil:
			_ = rawcall.Close(p.conn)
		case passes(p.err):
			time.Sleep(acceptPause)
		default:
			return -1, fmt.Errorf("accept: %w", p.err)
		}
	}
}

// isHost reports whether the other end of a vsock connection is the host; see fromHost.
func isHost(conn int) bool {
	id, err := rawcall.PeerContextID(conn)
	return err == nil && id == agentproto.HostCID
}

// serve accepts connections until the port is closed.
func (f *forks) serve(p *forkPort) error {
	for {
		conn, err := p.accept()
		if err != nil {
			return err
		}
		prepared := f.serveConn(conn)
		_ = rawcall.Close(conn)
		if prepared && f.quiet {
			p.keepQuiet()
		}
	}
}

// keepQuiet sleeps for quietIdle, and then keeps the CPU busy for quietBusy. The rest of
// agentproto.QuietTime is for the host's work.
const (
	quietIdle = agentproto.QuietTime * 4 / 5
	quietBusy = agentproto.QuietTime / 60
)

// keepQuiet sleeps for most of agentproto.QuietTime, so that the kernel and the other threads
// become idle, and then keeps the CPU busy for a few ticks. While the CPU is busy, pending
// deferrable timers expire, such as those of the kernel's statistics. Without this work, these
// timers would expire in every forked sandbox as soon as the sandbox wakes. keepQuiet returns early
// when a connection arrives, possibly the first connection in a forked sandbox.
func (p *forkPort) keepQuiet() {
	if !p.undisturbed(quietIdle) {
		return
	}
	for begin := time.Now(); time.Since(begin) < quietBusy; {
	}
}

// undisturbed waits for the time d, or until a connection arrives, and reports whether no
// connection arrived. It does not use time.Sleep or Go timers, which would keep another thread
// awake.
func (p *forkPort) undisturbed(d time.Duration) bool {
	none := false
	err := p.raw.Control(func(fd uintptr) {
		waiting := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for begin := time.Now(); ; {
			n, err := unix.Poll(waiting, int(max(0, d-time.Since(begin)).Milliseconds()))
			if err != unix.EINTR {
				none = n == 0 && err == nil
				return
			}
		}
	})
	return none && err == nil
}

// promptRead is how long readAtLeast waits for data in a raw system call, which blocks a thread
// without informing the Go runtime.
const promptRead = time.Second

// readAtLeast reads at least the given number of bytes from a connection into p, and returns the
// number of bytes read.
func readAtLeast(conn int, p []byte, least int) (n int, err error) {
	if err := rawcall.SetReadTimeout(conn, unix.NsecToTimeval(promptRead.Nanoseconds())); err != nil {
		return 0, fmt.Errorf("bound the wait for a message: %w", err)
	}
	read := rawcall.Read
	for n < least {
		k, err := read(conn, p[n:])
		switch {
		case errors.Is(err, unix.EINTR): // only unix.Read returns it
		case errors.Is(err, unix.EAGAIN):
			// The client is slow. Let the runtime know that the thread waits, although this costs
			// memory in the forked sandbox.
			read = unix.Read
		case err != nil:
			return n, err
		case k == 0:
			return n, io.ErrUnexpectedEOF
		default:
			n += k
		}
	}
	return n, nil
}

// writeAll writes p to a connection and ignores errors, because a host that has closed the
// connection kills this guest anyway.
func writeAll(conn int, p []byte) {
	for len(p) > 0 {
		n, err := rawcall.Write(conn, p)
		if err != nil {
			return
		}
		p = p[n:]
	}
}
