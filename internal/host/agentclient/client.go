// Package agentclient is the host side of the guest agent. It calls the agent of one guest through
// a dial function. The dial function takes a vsock port, and usually connects to the unix socket of
// the guest's VMM.
//
// The agent speaks two protocols of E2B: envd for processes and files, and the code interpreter's
// protocol for code. Code runs in a context, which is a namespace with its own interpreter. An
// evaluation runs code and returns all output at the end.
//
// Every call makes a new connection, because a vsock stream does not survive a fork. The package
// does not start or find guests, and does not retry. It does not trust guests, and bounds every
// answer.
package agentclient

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// Bounds on a guest's answers, in bytes.
const (
	maxControlReply  = 64 << 10
	maxLine          = 32 << 20
	maxErrorBody     = 64 << 10
	maxHeaders       = 16 << 10 // room for a file name of 4 KiB, with each byte encoded as three
	maxText          = 16 << 10 // text of an error, or of a command's outcome
	defaultMaxOutput = 8 << 20
)

// maxTotal returns the bound on the total output of a command or of code, in bytes. The parameter
// limit is the number of bytes that are kept of each stream. A command with more output than the
// bound is killed, because output must be decoded even if it is dropped.
func maxTotal(limit int) int { return 8 * max(limit, defaultMaxOutput) }

// DialFunc opens a stream to a vsock port of one guest.
type DialFunc func(ctx context.Context, port uint32) (net.Conn, error)

// Client calls the agent of one guest. Its methods may be called concurrently.
type Client struct {
	dial DialFunc
	envd *http.Client
	code *http.Client

	// Keep, if set, is called before a part of an answer is kept in memory, either as text or
	// decoded. The argument is the size of the part. If Keep returns an error, the call ends with
	// that error. Streams and files are not kept in memory.
	Keep func(bytes int) error

	// Quiet is how long Sync waits after the guest's answer. New sets it to agentproto.QuietTime, which
	// every guest that is saved afterwards needs.
	Quiet time.Duration
}

// URLs of the services. The dial function ignores their host names.
const (
	envdURL = "http://envd"
	codeURL = "http://code-interpreter"
)

// New returns a client that calls dial to connect to its guest. New itself does not connect.
func New(dial DialFunc) *Client {
	c := &Client{dial: dial, Quiet: agentproto.QuietTime}
	c.envd = &http.Client{Transport: c.Transport(agentproto.EnvdPort)}
	c.code = &http.Client{Transport: c.Transport(agentproto.CodeInterpreterPort)}
	return c
}

func (c *Client) Dial(ctx context.Context, port uint32) (net.Conn, error) { return c.dial(ctx, port) }

// Transport returns a round tripper that sends all requests to one port of the guest. It ignores
// the host in the URL of a request. The daemon uses it as a proxy for the envd and code interpreter
// protocols, and for a guest's own HTTP server on vsock.
func (c *Client) Transport(port uint32) http.RoundTripper {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return c.dial(ctx, port)
		},
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeaders,
	}
}

// Ping asks the agent whether it is ready. The answer is the message that the agent sent when it
// became ready.
func (c *Client) Ping(ctx context.Context) (agentproto.Ready, error) {
	reply, err := c.control(ctx, agentproto.Request{Op: agentproto.OpPing})
	if err != nil {
		return agentproto.Ready{}, err
	}
	if reply.Ready == nil {
		return agentproto.Ready{}, errors.New("agent ping: the reply has no ready message")
	}
	return *reply.Ready, nil
}

// ResetConnections closes the guest's TCP connections to the outside, because the peers no longer
// know these connections.
func (c *Client) ResetConnections(ctx context.Context) error {
	_, err := c.control(ctx, agentproto.Request{Op: agentproto.OpReset})
	return err
}

// Trust adds the PEM certificate of an authority to the certificates that the guest's programs
// trust.
func (c *Client) Trust(ctx context.Context, certificate []byte) error {
	_, err := c.control(ctx, agentproto.Request{Op: agentproto.OpTrust, Certificate: string(certificate)})
	return err
}

// Freeze blocks all writes to the guest's root file system until Thaw is called, but for at most 30
// seconds. While the file system is frozen, the disk looks as if it were unmounted.
func (c *Client) Freeze(ctx context.Context) error {
	_, err := c.control(ctx, agentproto.Request{Op: agentproto.OpFreeze})
	return err
}

// Busy reports whether a program in the guest holds a lock on agentproto.BusyFile. Older agents return an
// error.
func (c *Client) Busy(ctx context.Context) (bool, error) {
	reply, err := c.control(ctx, agentproto.Request{Op: agentproto.OpBusy})
	return reply.Busy, err
}

// Mount tells the guest to mount a volume. The guest waits some seconds for a disk in the volume's
// slot.
func (c *Client) Mount(ctx context.Context, v agentproto.Volume) error {
	_, err := c.control(ctx, agentproto.Request{Op: agentproto.OpMount, Volume: &v})
	return err
}

// Unmount tells the guest to write the data of a volume to its disk, and then to unmount the
// volume. If the error is an *Error, the guest has answered. In this case, programs are usually
// still using the volume, and its data is on the disk.
func (c *Client) Unmount(ctx context.Context, v agentproto.Volume) error {
	_, err := c.control(ctx, agentproto.Request{Op: agentproto.OpUnmount, Volume: &v})
	return err
}

// Thaw ends a Freeze. It returns an error if the freeze has already ended.
func (c *Client) Thaw(ctx context.Context) error {
	_, err := c.control(ctx, agentproto.Request{Op: agentproto.OpThaw})
	return err
}

func (c *Client) control(ctx context.Context, req agentproto.Request) (agentproto.Reply, error) {
	var reply agentproto.Reply
	line, err := json.Marshal(req)
	if err != nil {
		return reply, fmt.Errorf("agent %s: %w", req.Op, err)
	}
	err = c.exchange(ctx, agentproto.ControlPort, append(line, '\n'), func(r io.Reader) (err error) {
		line, err = bufio.NewReader(io.LimitReader(r, maxControlReply)).ReadBytes('\n')
		return err
	})
	if err != nil {
		return reply, fmt.Errorf("agent %s: %w", req.Op, err)
	}
	if err := json.Unmarshal(line, &reply); err != nil {
		return reply, fmt.Errorf("agent %s: reply: %w", req.Op, err)
	}
	if reply.Error != "" {
		return reply, &Error{Op: "agent " + string(req.Op), Code: CodeInternal, Message: cut(reply.Error, maxText)}
	}
	return reply, nil
}

// Defaults are values for later requests that omit them. An empty field leaves the guest's current
// default unchanged.
type Defaults struct {
	User string            `json:"defaultUser,omitempty"`    // an account of the guest
	Dir  string            `json:"defaultWorkdir,omitempty"` // absolute
	Env  map[string]string `json:"envVars,omitempty"`        // added to the environment of all later processes
}

// SetDefaults changes the guest's defaults, which its snapshots and forks inherit.
func (c *Client) SetDefaults(ctx context.Context, d Defaults) error {
	const op = "set defaults"
	body, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, envdURL+"/init", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	resp, err := c.envd.Do(req)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return httpError(op, resp)
	}
	return nil
}

// Sync prepares the guest for a snapshot. Afterwards the guest's page cache is on its disk, its
// interpreters have collected their garbage, and it has been idle for some seconds.
func (c *Client) Sync(ctx context.Context) error {
	if _, err := c.forkMessage(ctx, "agent sync", agentproto.AppendPrepare(nil)); err != nil {
		return err
	}
	select {
	case <-time.After(c.Quiet):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("agent sync: %w", ctx.Err())
	}
}

// Forked tells the guest that it is a new copy, and waits until the guest has changed its identity.
// It returns the random number generators that the agent has found, or nil if the agent is too old
// to search for them. After an error the guest must be killed, because it may have the same random
// numbers as its siblings.
func (c *Client) Forked(ctx context.Context, f agentproto.Forked) (*agentproto.Unique, error) {
	message, err := f.Append(nil)
	if err != nil {
		return nil, fmt.Errorf("agent forked: %w", err)
	}
	return c.forkMessage(ctx, "agent forked", message)
}

// forkMessage sends a message to agentproto.ForkPort, and returns the random number generators in
// the answer.
func (c *Client) forkMessage(ctx context.Context, op string, message []byte) (*agentproto.Unique, error) {
	var body []byte
	err := c.exchange(ctx, agentproto.ForkPort, message, func(r io.Reader) error {
		var head [agentproto.LengthSize]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return err
		}
		n, err := agentproto.Length(head[:], agentproto.MaxAnswer)
		if err != nil {
			return err
		}
		body = make([]byte, n)
		_, err = io.ReadFull(r, body)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	unique, text, err := agentproto.ParseAnswer(body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if text != "" {
		return nil, &Error{Op: op, Code: CodeInternal, Message: text}
	}
	return unique, nil
}

// exchange sends a request on a new connection. It calls read, which receives the answer.
func (c *Client) exchange(ctx context.Context, port uint32, request []byte, read func(io.Reader) error) error {
	conn, err := c.dial(ctx, port)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err = conn.Write(request); err == nil {
		err = read(conn)
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
