package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"

	"github.com/forkd/forkd/internal/agentproto"
)

// maxControlLine bounds one control request in bytes.
const maxControlLine = 1 << 20

// identity is the part of a fork that concerns the machine: the kernel's random numbers, clock and name.
type identity interface {
	Reseed(entropy []byte) error
	SetClock(ns int64) error
	SetHostname(name string) error
}

// interpreters is the part of a fork that concerns warm interpreters.
type interpreters interface {
	Forked(env map[string]string) error
	Prepare() error
}

// control serves agentproto's requests. It is the fork path: one goroutine a connection, no HTTP.
type control struct {
	ready    agentproto.Ready
	identity identity // nil if the agent is not its machine's init, as in tests
	env      interface{ Merge(map[string]string) }
	interps  interpreters
	flush    func() // writes the guest's page cache to its disk; nil if the agent is not its machine's init
}

// serve accepts connections until the listener is closed.
func (c *control) serve(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go c.serveConn(conn)
	}
}

func (c *control) serveConn(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewReader(conn)
	for {
		line, err := readRequest(lines)
		if err == io.EOF {
			return
		}
		var reply agentproto.Reply
		if err == nil {
			reply, err = c.handle(line)
		}
		if err != nil {
			reply = agentproto.Reply{Error: err.Error()}
		}
		out, err := json.Marshal(reply)
		if err != nil {
			return // strings always encode
		}
		if _, err := conn.Write(append(out, '\n')); err != nil {
			return
		}
	}
}

func readRequest(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxControlLine {
			return nil, io.EOF // a peer that does not keep to the protocol gets no answer
		}
		if err == nil {
			return line, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, io.EOF
		}
	}
}

func (c *control) handle(line []byte) (agentproto.Reply, error) {
	var req agentproto.Request
	if err := json.Unmarshal(line, &req); err != nil {
		return agentproto.Reply{}, fmt.Errorf("control request: %w", err)
	}
	switch req.Op {
	case agentproto.OpPing:
		return agentproto.Reply{Ready: &c.ready}, nil
	case agentproto.OpForked:
		if req.Forked == nil {
			return agentproto.Reply{}, errors.New("control request forked: the field forked is missing")
		}
		return agentproto.Reply{}, c.forked(*req.Forked)
	case agentproto.OpSync:
		return agentproto.Reply{}, c.prepare()
	}
	return agentproto.Reply{}, fmt.Errorf("control request: unknown op %q", req.Op)
}

// forked makes this guest differ from its siblings. The order matters: the interpreters seed their generators from the
// kernel's, so the kernel comes first; and no step is skipped after an error, because the guest is killed then.
//
// Code that was running when the snapshot was taken runs on while this happens; only what starts after the reply is
// certain to see the new identity.
func (c *control) forked(f agentproto.Forked) error {
	if c.identity != nil {
		if err := c.identity.Reseed(f.Entropy); err != nil {
			return err
		}
		if err := c.identity.SetClock(f.RealtimeNanos); err != nil {
			return err
		}
		if err := c.identity.SetHostname(f.Hostname); err != nil {
			return err
		}
	}
	c.env.Merge(f.Env)
	return c.interps.Forked(f.Env)
}

// prepare makes the guest cheap and safe to snapshot: garbage is collected here rather than in every child, and the
// disk holds what was written.
func (c *control) prepare() error {
	if err := c.interps.Prepare(); err != nil {
		return err
	}
	debug.FreeOSMemory()
	if c.flush != nil {
		c.flush()
	}
	return nil
}
