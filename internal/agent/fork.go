package agent

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/agentproto"
)

// identity is the part of a fork that concerns the machine: the kernel's random numbers, clock and name.
type identity interface {
	Reseed(entropy []byte) error
	SetClock(ns int64) error
	SetHostname(name []byte) error
}

// interpreters is the part of a fork that concerns warm interpreters.
type interpreters interface {
	Forked(env map[string]string) error
	Prepare() error
}

// forks serves agentproto.ForkPort. All it touches is copied in every child, so it works without the runtime's poller,
// in one goroutine that waits in the kernel, and allocates nothing for a message of the usual size: that keeps the
// agent's other threads, their stacks and its heap out of it. Connections have their turn one after another; a client
// must not dawdle.
type forks struct {
	identity identity // nil if the agent is not its machine's init, as in tests
	env      interface{ Merge(map[string]string) }
	interps  interpreters
	flush    func() // writes the guest's page cache to its disk; nil if the agent is not its machine's init
	settle   time.Duration
}

// serve accepts connections on a listening socket in blocking mode until it is shut down.
func (f *forks) serve(listener int) error {
	for {
		conn, err := accept(listener)
		if err != nil {
			return err
		}
		f.serveConn(conn)
		_ = unix.Close(conn)
	}
}

// usualMessage is room for a fork message without variables, on the goroutine's stack.
const usualMessage = 512

// serveConn answers one message. What is not a message gets no answer.
func (f *forks) serveConn(conn int) {
	var buf [usualMessage]byte
	n, err := readAtLeast(conn, buf[:], agentproto.LengthSize)
	if err != nil {
		return
	}
	size, err := agentproto.Length(buf[:n], agentproto.MaxForked)
	if err != nil {
		return
	}
	message := buf[:]
	if total := agentproto.LengthSize + size; total > len(message) {
		message = make([]byte, total)
		copy(message, buf[:n])
	} else {
		message = message[:total]
	}
	if n < len(message) {
		if _, err := readAtLeast(conn, message[n:], len(message)-n); err != nil {
			return
		}
	}
	var answer [agentproto.LengthSize]byte
	out := agentproto.AppendAnswer(answer[:0], f.handle(message[agentproto.LengthSize:]))
	for len(out) > 0 {
		n, err := unix.Write(conn, out)
		if err != nil && err != unix.EINTR {
			return
		}
		out = out[max(n, 0):]
	}
}

func (f *forks) handle(message []byte) error {
	m, err := agentproto.Parse(message)
	if err != nil {
		return err
	}
	if m.Prepare {
		return f.prepare()
	}
	return f.forked(&m)
}

// forked makes this guest differ from its siblings. The order matters: the interpreters seed their generators from the
// kernel's, so the kernel comes first; and no step is skipped after an error, because the guest is killed then.
//
// Code that was running when the snapshot was taken runs on while this happens; only what starts after the answer is
// certain to see the new identity.
func (f *forks) forked(m *agentproto.Received) error {
	if f.identity != nil {
		if err := f.identity.Reseed(m.Entropy); err != nil {
			return err
		}
		if err := f.identity.SetClock(m.RealtimeNanos); err != nil {
			return err
		}
		if err := f.identity.SetHostname(m.Hostname); err != nil {
			return err
		}
	}
	if len(m.Env) > 0 {
		f.env.Merge(m.Env)
	}
	return f.interps.Forked(m.Env)
}

// settleTime is how long a guest runs on idle before it is saved. What a busy guest has left to do later, such as
// collecting freed memory, ending timers of its disk, and putting threads to sleep, it does then, and not in every child.
const settleTime = 3 * time.Second

// prepare makes the guest cheap and safe to snapshot: garbage is collected here rather than in every child, and the
// disk holds what was written.
func (f *forks) prepare() error {
	if err := f.interps.Prepare(); err != nil {
		return err
	}
	debug.FreeOSMemory()
	if f.flush != nil {
		f.flush()
	}
	// Not time.Sleep: its timer would keep another thread awake until after this one has answered.
	wait := unix.NsecToTimespec(f.settle.Nanoseconds())
	for unix.Nanosleep(&wait, &wait) == unix.EINTR {
	}
	return nil
}

// accept takes the next connection. It asks for no peer address: unix.Accept4 would allocate one.
func accept(listener int) (int, error) {
	for {
		conn, _, errno := unix.Syscall6(unix.SYS_ACCEPT4, uintptr(listener), 0, 0, unix.SOCK_CLOEXEC, 0, 0)
		switch errno {
		case 0:
			return int(conn), nil
		case unix.EINTR, unix.ECONNABORTED, unix.ECONNRESET:
		default:
			return -1, fmt.Errorf("accept: %w", errno)
		}
	}
}

// readAtLeast reads until at least least bytes of p are filled, and returns how many are.
func readAtLeast(fd int, p []byte, least int) (n int, err error) {
	for n < least {
		k, err := unix.Read(fd, p[n:])
		switch {
		case err == unix.EINTR:
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

// backlog is how many connections may wait. There is one at a time but for clients that gave up.
const backlog = 16

// listenRaw opens a listening socket in blocking mode.
func listenRaw(family int, addr unix.Sockaddr) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	if err := errors.Join(unix.Bind(fd, addr), unix.Listen(fd, backlog)); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}
