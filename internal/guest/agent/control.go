package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// maxControlLine bounds one control request in bytes.
const maxControlLine = 1 << 20

// control serves agentproto's requests, with one goroutine per connection.
type control struct {
	ready agentproto.Ready
	reset func() error                   // closes the guest's connections; nil unless the agent is PID 1
	trust func(certificate string) error // see agent.trust; nil unless the agent is PID 1
	busy  string                         // path of the file that keeps the sandbox awake; empty: there is none
	disk  resting                        // root file system; noDisk unless the agent is PID 1
	// mounts and unmounts volumes; nil unless the agent is PID 1
	volumes interface {
		Mount(v agentproto.Volume) error
		Unmount(v agentproto.Volume) error
	}
}

// resting is a file system whose writes can be blocked; see disk.Disk.
type resting interface {
	Rest() error
	Wake() error
}

// noDisk accepts all requests and does nothing. An agent that runs as an ordinary process uses
// noDisk, because its files are on the disk of another machine.
type noDisk struct{}

func (noDisk) Rest() error { return nil }
func (noDisk) Wake() error { return nil }

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
		if errors.Is(err, io.EOF) {
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
			return // cannot fail: the answer consists of strings
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
			return nil, io.EOF // a peer that violates the protocol gets no answer
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
	case agentproto.OpReset:
		if c.reset == nil {
			return agentproto.Reply{}, errors.New("reset connections: this agent is not its machine's init")
		}
		return agentproto.Reply{}, c.reset()
	case agentproto.OpTrust:
		if c.trust == nil {
			return agentproto.Reply{}, errors.New("trust a certificate: this agent is not its machine's init")
		}
		return agentproto.Reply{}, c.trust(req.Certificate)
	case agentproto.OpBusy:
		busy, err := isLocked(c.busy, "/proc/locks")
		return agentproto.Reply{Busy: busy}, err
	case agentproto.OpFreeze, agentproto.OpThaw:
		if c.disk == nil {
			return agentproto.Reply{}, fmt.Errorf("%s the file system: this agent is not its machine's init", req.Op)
		}
		if req.Op == agentproto.OpFreeze {
			return agentproto.Reply{}, c.disk.Rest()
		}
		return agentproto.Reply{}, c.disk.Wake()
	case agentproto.OpMount, agentproto.OpUnmount:
		switch {
		case c.volumes == nil:
			return agentproto.Reply{}, fmt.Errorf("%s a volume: this agent is not its machine's init", req.Op)
		case req.Volume == nil:
			return agentproto.Reply{}, fmt.Errorf("%s a volume: the request names none", req.Op)
		case req.Op == agentproto.OpMount:
			return agentproto.Reply{}, c.volumes.Mount(*req.Volume)
		}
		return agentproto.Reply{}, c.volumes.Unmount(*req.Volume)
	}
	return agentproto.Reply{}, fmt.Errorf("control request: unknown op %q", req.Op)
}
