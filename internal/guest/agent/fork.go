package agent

import (
	"runtime/debug"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// identity is the part of a fork that concerns the machine: the kernel's random numbers, clock and
// name.
type identity interface {
	Reseed(entropy []byte) error
	SetClock(ns int64) error
	SetHostname(name []byte) error
	Rehearse() error
	Shared() []string
}

// interpreters is the part of a fork that concerns warm interpreters.
type interpreters interface {
	Forked(env map[string]string) error
	Prepare() error
}

// network is the part of a fork that concerns connections to the outside.
type network interface {
	Reset() error
	Rehearse() error
}

// hooks runs the image's fork hooks.
type hooks interface {
	Any() bool
	Run() error
}

// finder is the part of a fork that concerns the processes of users.
type finder interface {
	Rehearse() error
	Renew() (agentproto.Unique, error)
}

// forks serves agentproto.ForkPort. Every page that it touches is copied in every child. So it
// allocates nothing for a message of the usual size. It waits for connections in the runtime's
// poller, where one thread sleeps. That thread makes its calls by package rawcall, and so wakes no
// other thread. Connections are served one after another; a client must not be slow.
type forks struct {
	identity identity // nil unless the agent is the machine's init, as in tests
	env      interface{ Merge(map[string]string) }
	interps  interpreters
	network  network            // nil if the agent is not its machine's init
	hooks    hooks              // nil unless the agent is the machine's init
	gens     finder             // nil unless the agent is the machine's init
	flush    func()             // writes the guest's page cache to its disk; nil unless the agent is the machine's init
	unique   agentproto.Unique  // findings of gens for the present message
	buf      [usualMessage]byte // for the present message
	quiet    bool               // see keepQuiet
}

// usualMessage is the size of a buffer for a fork message without variables, in bytes.
const usualMessage = 512

// usualAnswer is the size of a buffer for an answer that names no generator, in bytes.
const usualAnswer = 32

// serveConn answers one message and reports whether the guest will now be saved. An invalid message
// gets no answer.
func (f *forks) serveConn(conn int) (prepared bool) {
	message, err := readMessage(conn, f.buf[:])
	if err != nil {
		return false
	}
	prepared, err = f.handle(message)
	var answer [usualAnswer]byte
	if err == nil && !prepared && f.gens != nil {
		writeAll(conn, agentproto.AppendUnique(answer[:0], f.unique))
	} else {
		writeAll(conn, agentproto.AppendAnswer(answer[:0], err))
	}
	f.unique = agentproto.Unique{}
	return prepared
}

// readMessage reads a message into buf, or into new memory if buf is too short, and returns it
// without its length.
func readMessage(conn int, buf []byte) ([]byte, error) {
	n, err := readAtLeast(conn, buf, agentproto.LengthSize)
	if err != nil {
		return nil, err
	}
	size, err := agentproto.Length(buf[:n], agentproto.MaxForked)
	if err != nil {
		return nil, err
	}
	total := agentproto.LengthSize + size
	if total > len(buf) {
		buf = append(make([]byte, 0, total), buf[:n]...)
	}
	if n < total {
		if _, err := readAtLeast(conn, buf[n:total], total-n); err != nil {
			return nil, err
		}
	}
	return buf[agentproto.LengthSize:total], nil
}

func (f *forks) handle(message []byte) (prepared bool, err error) {
	m, err := agentproto.Parse(message)
	if err != nil {
		return false, err
	}
	if m.Prepare {
		err := f.prepare()
		return err == nil, err
	}
	return false, f.forked(&m)
}

// forked makes this guest differ from its siblings. The order matters: the interpreters seed their
// generators from the kernel's, so the kernel comes first, and hooks may start processes that must
// be searched. After an error the rest is skipped, because the guest is killed then.
//
// Code that was running when the snapshot was taken runs on during this; only code that starts
// after the answer is certain to see the new identity.
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
	if f.network != nil {
		if err := f.network.Reset(); err != nil {
			return err
		}
	}
	if len(m.Env) > 0 {
		f.env.Merge(m.Env)
	}
	if f.hooks != nil {
		if err := f.hooks.Run(); err != nil {
			return err
		}
	}
	if f.gens != nil {
		var err error
		if f.unique, err = f.gens.Renew(); err != nil {
			return err
		}
		f.nameShared()
	}
	return f.interps.Forked(m.Env)
}

// nameShared adds files of the machine that are the same in its siblings.
func (f *forks) nameShared() {
	if f.identity == nil {
		return
	}
	for _, path := range f.identity.Shared() {
		f.unique.Repeats = append(f.unique.Repeats, agentproto.Generator{PID: 1, Program: "forkd-agent",
			Library: path + " of the image"})
	}
}

// prepare makes the guest cheap and safe to snapshot: garbage is collected here rather than in
// every child, and written data is on the disk. The rehearsal comes after the collection, which
// would undo some of its effects, such as a larger stack.
func (f *forks) prepare() error {
	if err := f.interps.Prepare(); err != nil {
		return err
	}
	debug.FreeOSMemory()
	if err := f.rehearse(); err != nil {
		return err
	}
	if f.flush != nil {
		f.flush()
	}
	return nil
}

// rehearse does once what every child would otherwise do for the first time, and pay for with
// memory of its own: growing the stack, faulting code in, and making the kernel remember that a
// file is missing.
func (f *forks) rehearse() error {
	if f.hooks != nil {
		f.hooks.Any()
	}
	if f.gens != nil {
		if err := f.gens.Rehearse(); err != nil {
			return err
		}
	}
	if f.network != nil {
		if err := f.network.Rehearse(); err != nil {
			return err
		}
	}
	if f.identity == nil {
		return nil
	}
	return f.identity.Rehearse()
}
