package agent

import (
	"runtime/debug"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// identity changes what distinguishes a machine from its siblings: the kernel's random numbers,
// clock and name.
type identity interface {
	Reseed(entropy []byte) error
	SetClock(ns int64) error
	SetHostname(name []byte) error
	Rehearse() error
	Shared() []string
}

// interpreters tells warm interpreters about a fork.
type interpreters interface {
	Forked(env map[string]string) error
	Prepare() error
}

// network closes connections to other hosts, because the peers know only the source of the fork.
type network interface {
	Reset() error
	Rehearse() error
}

// hooks runs the image's fork hooks.
type hooks interface {
	Any() bool
	Run() error
}

// finder finds and reseeds random number generators in the processes of users.
type finder interface {
	Rehearse() error
	Renew() (agentproto.Unique, error)
}

// forks serves agentproto.ForkPort. Every page that this service writes is copied in every forked
// sandbox, so the service allocates nothing for a message of the usual size. One thread sleeps in
// the Go runtime's poller to wait for connections. This thread then makes its system calls through
// package rawcall, so that the runtime wakes no other thread for them. Connections are served one
// after another, so a client must not be slow.
type forks struct {
	identity identity // nil unless the agent is PID 1
	env      interface{ Merge(map[string]string) }
	interps  interpreters
	network  network            // nil if the agent is not PID 1, or if the kernel cannot close connections
	hooks    hooks              // nil unless the agent is PID 1
	gens     finder             // nil unless the agent is PID 1
	flush    func()             // writes the guest's page cache to its disk; nil unless the agent is PID 1
	unique   agentproto.Unique  // findings of gens, for the answer to the current message
	buf      [usualMessage]byte // holds the current message
	quiet    bool               // whether serve calls keepQuiet after a request to prepare
}

// usualMessage is the size in bytes of a buffer for a fork message without environment variables.
const usualMessage = 512

// usualAnswer is the size in bytes of a buffer for an answer that lists no generator.
const usualAnswer = 32

// serveConn answers one message. It reports whether the message was a successful request to
// prepare, after which the host saves the guest. An invalid message gets no answer.
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

// readMessage reads a message into buf, or into a new buffer if buf is too short. It returns the
// message without its length field.
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

// forked makes this guest differ from its siblings. The order of the steps matters. The kernel's
// generator comes first, because interpreters seed their generators from it. Hooks come before the
// search for generators, because they may start processes that the search must cover. After an
// error the remaining steps are skipped, because the host then kills the guest.
//
// Code that was running when the snapshot was taken continues during these steps. Code is certain
// to see the new identity only if it starts after the agent has answered.
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

// nameShared adds the files that this guest shares with its siblings, such as keys, to the answer.
func (f *forks) nameShared() {
	if f.identity == nil {
		return
	}
	for _, path := range f.identity.Shared() {
		f.unique.Repeats = append(f.unique.Repeats, agentproto.Generator{PID: 1, Program: "forkd-agent",
			Library: path + " of the image"})
	}
}

// prepare makes the guest cheap and safe to snapshot. It collects garbage here so that no forked
// sandbox has to, and writes data to the disk. It calls rehearse after the collection, because a
// collection would undo some effects of rehearse, such as a larger stack.
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

// rehearse runs the code that answers a fork. Without a rehearsal, the first run in every child
// would need memory of its own, because it grows the stack, loads pages of code, and makes the
// kernel remember that a file is missing. After a rehearsal the snapshot contains that memory.
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
