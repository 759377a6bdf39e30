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

	// State of the current accept. tryAccept is made only once, so that an accept allocates
	// nothing.
	tryAccept func(fd uintptr) bool
	conn      int
	err       error
}

// backlog is how many connections may wait. There is only one at a time, except for clients that
// gave up.
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

// Close ends a wait for connections.
func (p *forkPort) Close() error { return p.file.Close() }

// accept takes the next connection, in blocking mode.
func (p *forkPort) accept() (int, error) {
	for {
		if err := p.raw.Read(p.tryAccept); err != nil {
			return -1, err
		}
		switch {
		case p.err == nil:
			return p.conn, nil
		case passes(p.err):
			time.Sleep(acceptPause)
		default:
			return -1, fmt.Errorf("accept: %w", p.err)
		}
	}
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

// Parts of agentproto.QuietTime; the rest of it is for the work after them.
const (
	quietIdle = agentproto.QuietTime * 4 / 5
	quietBusy = agentproto.QuietTime / 60
)

// keepQuiet leaves the kernel and the other threads idle for most of agentproto.QuietTime and then
// keeps the CPU busy for a few ticks. Otherwise deferrable timers, such as those of the kernel's
// statistics, would expire in every child as soon as it wakes. It returns when a connection
// arrives, which may be a child's first.
func (p *forkPort) keepQuiet() {
	if !p.undisturbed(quietIdle) {
		return
	}
	for begin := time.Now(); time.Since(begin) < quietBusy; {
	}
}

// undisturbed waits for d, or until a connection arrives, and reports whether none did. It does not
// use time.Sleep and the like, whose timers would keep another thread awake.
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

// promptRead is how long the rest of a message may take to arrive while the Go runtime is not
// informed of the wait.
const promptRead = time.Second

// readAtLeast reads from a connection until at least least bytes of p are filled, and returns how
// many are.
func readAtLeast(conn int, p []byte, least int) (n int, err error) {
	if err := rawcall.SetReadTimeout(conn, unix.NsecToTimeval(promptRead.Nanoseconds())); err != nil {
		return 0, fmt.Errorf("bound the wait for a message: %w", err)
	}
	read := rawcall.Read
	for n < least {
		k, err := read(conn, p[n:])
		switch {
		case errors.Is(err, unix.EINTR): // of unix.Read
		case errors.Is(err, unix.EAGAIN):
			read = unix.Read // the client is slow: this fork need not be cheap
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

// writeAll writes what fits into the socket's buffer at once. Errors matter only for a guest that
// will be killed.
func writeAll(conn int, p []byte) {
	for len(p) > 0 {
		n, err := rawcall.Write(conn, p)
		if err != nil {
			return
		}
		p = p[n:]
	}
}
