package sshd

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/inbound"
)

// forward connects a channel to a port of the sandbox.
func (c *client) forward(ctx context.Context, asked ssh.NewChannel, port uint16) {
	c.s.Counts.SSHSessionBegun()
	begun := time.Now()
	closed := make(chan struct{}) // closed when the client has closed the channel
	var counted *channel
	accepted, err := c.reach(ctx, port, func() (inbound.Stream, <-chan struct{}, error) {
		channel, requests, err := asked.Accept()
		if err != nil {
			close(closed)
			return nil, nil, err
		}
		go func() {
			refuse(requests)
			close(closed)
		}()
		counted = c.unread.count(channel, closed)
		return counted, closed, nil
	})
	if accepted {
		c.settle(closed)
		if counted != nil {
			counted.release()
		}
	} else {
		_ = asked.Reject(ssh.ConnectionFailed, err.Error())
	}
	c.ended("forward", fmt.Sprintf("/ports/%d", port), begun, err)
}

func (c *client) reach(ctx context.Context, port uint16,
	accept func() (inbound.Stream, <-chan struct{}, error)) (accepted bool, err error) {
	who, err := c.s.principal(c.login)
	if err != nil {
		return false, err
	}
	ctx = auth.With(ctx, who)
	if _, err := c.s.Face.View(ctx).Sandbox(c.login.id); err != nil {
		return false, err
	}
	return c.s.Face.CarryStream(ctx, c.login.id, port, accept)
}

// settle waits until the client has closed a channel that is closed on this side. Until then the
// channel takes memory. So the connection of a client that does not close it is closed.
func (c *client) settle(closed <-chan struct{}) {
	select {
	case <-closed:
	case <-time.After(c.s.Limits.Closing):
		c.conn.Close()
		<-closed
	}
}
