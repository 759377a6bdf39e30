package sshd

import (
	"sync"
	"time"

	"github.com/forkd/forkd/internal/proto/sshproto"
)

// channel is an SSH channel that the daemon has accepted.
type channel struct {
	*sshproto.Stream
	requests chan *sshproto.Request // closed when the client has closed the channel
	closed   chan struct{}          // closed when the Go channel of the requests is closed
	sent     chan struct{}          // closed when everything written before Close has been sent to the client
	markSent func()                 // closes sent
}

// waitingRequests bounds the requests of a channel that wait for their answers. If the client sends
// more, its connection waits.
const waitingRequests = 4

// accept accepts a channel. It fails if the connection has ended. If the daemon has too many open
// files, accept fails too, and closes the connection.
func (c *client) accept(id uint32) (*channel, error) {
	stream, theirs, err := sshproto.NewStream()
	if err != nil {
		c.peer.Close()
		return nil, err
	}
	defer theirs.Close()
	sent := make(chan struct{})
	ch := &channel{stream, make(chan *sshproto.Request, waitingRequests), make(chan struct{}), sent,
		sync.OnceFunc(func() { close(sent) })}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		stream.Release()
		return nil, errLeft
	}
	// The process cannot send messages about the channel before it has received this message. The
	// process always receives this message, or it exits.
	if err := c.peer.Send(&sshproto.Accept{ID: id}, int(theirs.Fd())); err != nil {
		stream.Release()
		return nil, errLeft
	}
	c.open[id] = ch
	return ch, nil
}

// channel returns an open channel, or nil.
func (c *client) channel(id uint32) *channel {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open[id]
}

// closeAll ends all channels of a connection that has ended.
func (c *client) closeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range c.open {
		_ = ch.Close() // never fails
		ch.end()
	}
	c.open = nil
}

// end is called when the client has closed the channel.
func (ch *channel) end() {
	close(ch.requests)
	close(ch.closed)
}

// reply answers a request, if the client wants an answer.
func (ch *channel) reply(r *sshproto.Request, ok bool) {
	if r.WantReply {
		_ = ch.Reply(ok) // fails only if the client has left
	}
}

// refuseRequests refuses all requests until the client has closed the channel.
func (ch *channel) refuseRequests() {
	for r := range ch.requests {
		ch.reply(r, false)
	}
}

// settle closes a channel on this side, and waits until the client has taken the output and closed
// the channel too. Until then, the channel takes memory of the connection's process. So settle
// closes the connection of a client that takes too long. If the channel has ended with an error,
// the client has less time to take the output.
func (c *client) settle(ch *channel, err error) {
	_ = ch.Close() // never fails
	patience := c.s.Face.Limits.Idle
	if err != nil {
		patience = c.s.Limits.Closing
	}
	late := time.AfterFunc(patience, func() { c.peer.Close() })
	defer late.Stop()
	select {
	case <-ch.sent:
		late.Reset(c.s.Limits.Closing)
		<-ch.closed
	case <-ch.closed:
	}
	ch.Release()
}
