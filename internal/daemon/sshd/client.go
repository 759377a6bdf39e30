package sshd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/proto/sshproto"
)

// client is a connection that has logged in.
type client struct {
	s     *Server
	login *login
	peer  *peer
	entry audit.Entry // audit entry of the login; the entries of channels are copies of this entry
	pongs chan struct{}

	channels sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	open map[uint32]*channel // channels that the client has not closed, by id; nil: the connection has ended
}

// serve serves the channels of a connection until the connection or ctx ends.
func (c *client) serve(ctx context.Context) {
	stopped := ctx
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer c.channels.Wait()
	defer c.closeAll()
	defer c.peer.Close()
	defer cancel(errLeft)
	defer context.AfterFunc(stopped, func() { cancel(errStopping) })() // channels end with ctx, and tell clients why
	go c.keepAlive(ctx)
	own := gate.New(c.s.Limits.ChannelsPerClient)
	for next := uint32(1); ; {
		m, err := c.peer.Receive()
		if err != nil {
			return
		}
		switch m := m.(type) {
		case *sshproto.Sign:
			err = c.peer.sign(ctx, c.s.HostKey, m)
		case *sshproto.Open:
			if m.ID != next {
				return
			}
			next++
			c.ask(ctx, m, own)
		case *sshproto.Request:
			if ch := c.channel(m.ID); ch != nil {
				ch.requests <- m
			}
		case *sshproto.Sent:
			if ch := c.channel(m.ID); ch != nil {
				ch.markSent()
			}
		case *sshproto.Closed:
			c.mu.Lock()
			ch := c.open[m.ID]
			delete(c.open, m.ID)
			c.mu.Unlock()
			if ch != nil {
				ch.end()
			}
		case *sshproto.Pong:
			select {
			case c.pongs <- struct{}{}:
			default:
			}
		default: // such as a second Login
			return
		}
		if err != nil {
			return
		}
	}
}

// ask serves the channel that a client asks to open, or refuses it.
func (c *client) ask(ctx context.Context, asked *sshproto.Open, own *gate.Gate) {
	serve := c.opener(asked)
	if serve == nil {
		return
	}
	leave, err := own.Enter()
	if err == nil {
		var all func()
		if all, err = c.s.channels.Enter(owner.FairShare(c.login.key.Who, c.s.Limits.Channels)); err == nil {
			one := leave
			leave = func() { all(); one() }
		} else {
			leave()
		}
	}
	if err != nil {
		c.refuse(asked.ID, ssh.ResourceShortage, "too many channels: "+err.Error())
		return
	}
	c.channels.Go(func() {
		defer leave()
		serve(ctx)
	})
}

// opener returns the function that serves a channel, or nil if it has refused the channel.
func (c *client) opener(asked *sshproto.Open) func(context.Context) {
	switch asked.Type {
	case "session":
		return func(ctx context.Context) { c.session(ctx, asked.ID) }
	case "direct-tcpip":
		port, err := parseForward(asked.Extra)
		if err == nil {
			return func(ctx context.Context) { c.forward(ctx, asked.ID, port) }
		}
		c.refuse(asked.ID, ssh.Prohibited, err.Error())
	default: // such as x11, and direct-streamlocal@openssh.com
		c.refuse(asked.ID, ssh.UnknownChannelType, "forkd serves sessions, and connections to ports of the sandbox")
	}
	return nil
}

// refuse refuses a channel.
func (c *client) refuse(id uint32, reason ssh.RejectionReason, text string) {
	// This fails only if the connection has ended.
	_ = c.peer.Send(&sshproto.Refuse{ID: id, Reason: uint32(reason), Text: text})
}

// keepAlive closes the connection if the client does not answer within an interval, or if its key
// has been revoked.
func (c *client) keepAlive(ctx context.Context) {
	interval := c.s.Limits.Keepalive
	for tick := time.NewTicker(interval); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		if _, err := c.s.principal(c.login); err != nil {
			c.peer.Close()
			return
		}
		late := time.AfterFunc(max(interval, minAnswer), func() { c.peer.Close() })
		if c.peer.Send(&sshproto.Ping{}) == nil {
			select {
			case <-c.pongs:
			case <-ctx.Done():
			}
		}
		late.Stop()
	}
}

// minAnswer is the minimum time for which keepAlive waits for an answer.
const minAnswer = time.Second

// use calls f with a client of the guest's agent. It resumes a suspended sandbox, and the sandbox is
// in use until f returns.
func (c *client) use(ctx context.Context, f func(context.Context, *agentclient.Client) error) error {
	who, err := c.s.principal(c.login)
	if err != nil {
		return err
	}
	ctx = auth.With(ctx, who)
	leave, err := c.s.Face.Guests.Enter(who.Who, c.login.id)
	if err != nil {
		return err
	}
	defer leave()
	return c.s.Face.View(ctx).Use(ctx, c.login.id, "SSH to", func(ctx context.Context,
		dial agentclient.DialFunc) error {
		return f(ctx, agentclient.New(dial))
	})
}

// ended() counts a channel of the given kind, and writes its audit line.
func (c *client) ended(kind, path string, begun time.Time, err error) {
	outcome := "ok"
	var left *leftError
	switch {
	case errors.As(err, &left):
		outcome, err = "client", nil
	case err != nil:
		outcome = "failed"
	}
	c.s.Counts.SSHSessionEnded(kind, outcome, time.Since(begun))
	e := c.entry
	e.Time, e.RequestID, e.Path = begun, audit.NewID(), path
	c.s.audit(e, err)
}

// leftError is the cause of a session's end if the client has left or the daemon is stopping. The
// session's process then receives SIGHUP, and is not killed.
type leftError struct{ why string }

func (e *leftError) Error() string { return e.why }
func (e *leftError) Unwrap() error { return agentclient.ErrDetached }

var (
	errLeft      = &leftError{"the client left"}
	errStopping  = &leftError{"the daemon is stopping"}
	errNoCommand = &leftError{"the session got no command in time"}
)

// parseForward returns the port of a channel of the type direct-tcpip (RFC 4254, section 7.2).
func parseForward(payload []byte) (port uint16, err error) {
	var m struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}
	if err := ssh.Unmarshal(payload, &m); err != nil {
		return 0, face.BadRequest("the request is malformed")
	}
	switch m.Host {
	case "localhost", "127.0.0.1", "::1":
	default:
		return 0, face.NewError(http.StatusForbidden,
			fmt.Sprintf("forwarding to %.100q: only localhost is possible, which is the sandbox's own", m.Host))
	}
	if m.Port < 1 || m.Port > 1<<16-1 {
		return 0, face.BadRequest("port %d: want 1 to 65535", m.Port)
	}
	return uint16(m.Port), nil
}
