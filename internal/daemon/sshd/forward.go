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
func (c *client) forward(ctx context.Context, id uint32, port uint16) {
	c.s.Counts.SSHSessionBegun()
	begun := time.Now()
	var ch *channel
	accepted, err := c.reach(ctx, port, func() (_ inbound.Stream, gone <-chan struct{}, err error) {
		if ch, err = c.accept(id); err != nil {
			return nil, nil, err
		}
		go ch.refuseRequests()
		return ch, ch.closed, nil
	})
	switch {
	case !accepted:
		c.refuse(id, ssh.ConnectionFailed, err.Error())
	case ch != nil:
		c.settle(ch, err)
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
	return c.s.Face.CarryStream(ctx, "ssh", c.login.id, port, accept)
}
