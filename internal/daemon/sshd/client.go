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
)

// client is a connection that has logged in.
type client struct {
	s      *Server
	login  *login
	conn   *ssh.ServerConn
	unread *unread
	entry  audit.Entry // of the login; the entries of channels are copies of it

	channels sync.WaitGroup
}

// serve serves the channels of a connection until the connection or ctx ends.
func (c *client) serve(ctx context.Context, channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	stopped := ctx
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer c.channels.Wait()
	defer c.conn.Close()
	defer cancel(errLeft)
	defer context.AfterFunc(stopped, func() { cancel(errStopping) })()
	go refuse(requests)
	go c.keepAlive(ctx)
	own := gate.New(c.s.Limits.ChannelsPerClient)
	share := owner.FairShare(c.login.key.Who, c.s.Limits.Channels)
	for {
		var asked ssh.NewChannel
		select {
		case <-ctx.Done():
			c.channels.Wait() // channels end with ctx, and say why; the caller closes the connection a little later
			return
		case asked = <-channels:
		}
		if asked == nil {
			return
		}
		serve := c.opener(asked)
		if serve == nil {
			continue
		}
		leave, err := own.Enter()
		if err == nil {
			var all func()
			if all, err = c.s.channels.Enter(share); err == nil {
				one := leave
				leave = func() { all(); one() }
			} else {
				leave()
			}
		}
		if err != nil {
			_ = asked.Reject(ssh.ResourceShortage, "too many channels: "+err.Error())
			continue
		}
		c.channels.Go(func() {
			defer leave()
			serve(ctx)
		})
	}
}

// opener returns the function that serves a channel, or nil if it has refused the channel.
func (c *client) opener(asked ssh.NewChannel) func(context.Context) {
	switch asked.ChannelType() {
	case "session":
		return func(ctx context.Context) { c.session(ctx, asked) }
	case "direct-tcpip":
		port, err := parseForward(asked.ExtraData())
		if err == nil {
			return func(ctx context.Context) { c.forward(ctx, asked, port) }
		}
		_ = asked.Reject(ssh.Prohibited, err.Error())
	default: // such as x11, and direct-streamlocal@openssh.com
		_ = asked.Reject(ssh.UnknownChannelType, "forkd serves sessions, and connections to ports of the sandbox")
	}
	return nil
}

// refuse refuses requests, such as to listen for the client (tcpip-forward), to forward an agent, or
// for X11.
func refuse(requests <-chan *ssh.Request) {
	for r := range requests {
		if r.WantReply && r.Reply(false, nil) != nil {
			break
		}
	}
	ssh.DiscardRequests(requests) // after an error, until the connection has ended
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
			c.conn.Close()
			return
		}
		late := time.AfterFunc(max(interval, minAnswer), func() { c.conn.Close() })
		_, _, err := c.conn.SendRequest("keepalive@openssh.com", true, nil)
		late.Stop()
		if err != nil {
			return
		}
	}
}

// minAnswer is the least time for the answer to a keepalive.
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

// ended counts a channel of the given kind, and writes its audit line.
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

// leftError is the cause for the end of a session that the client, or the daemon's stop, has ended. Its
// process is hung up instead of killed.
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
