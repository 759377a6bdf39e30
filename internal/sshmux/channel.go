package sshmux

import (
	"io"
	"os"

	"golang.org/x/crypto/ssh"

	"github.com/forkd/forkd/internal/proto/sshproto"
)

// open asks the daemon about a channel, and serves the channel if the daemon accepts it.
func (c *connection) open(id uint32, asked ssh.NewChannel) {
	decided := make(chan answer, 1)
	c.mu.Lock()
	c.asked[id] = decided
	c.mu.Unlock()
	c.send(&sshproto.Open{ID: id, Type: asked.ChannelType(), Extra: asked.ExtraData()})
	go func() {
		a := <-decided
		if a.refused != nil {
			_ = asked.Reject(ssh.RejectionReason(a.refused.Reason), a.refused.Text) // fails only if the client has left
			return
		}
		accepted, requests, err := asked.Accept()
		if err != nil {
			os.Exit(exitClean) // the client has left
		}
		(&channel{Channel: accepted, c: c, id: id, stream: a.stream, replies: make(chan reply, 1)}).serve(requests)
	}()
}

// channel is an open channel.
type channel struct {
	ssh.Channel
	c       *connection
	id      uint32
	stream  *sshproto.Stream
	replies chan reply // replies of the daemon; closed when the daemon has closed the channel
}

// reply is the daemon's answer to a request. The client must get the answer before later output,
// and before the end of the channel.
type reply struct {
	ok   bool
	sent chan<- struct{} // to be closed when the client has the reply
}

// serve carries data and requests until both sides have closed the channel.
func (ch *channel) serve(requests <-chan *ssh.Request) {
	sent, received := make(chan struct{}), make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, ch.Stderr()) }() // clients do not send anything to stderr
	go func() {
		defer close(sent)
		ch.input()
	}()
	go func() {
		defer close(received)
		ch.output()
	}()
	for r := range requests {
		ok := len(r.Type) <= sshproto.MaxName && len(r.Payload) <= sshproto.MaxPayload
		var answer reply
		if ok {
			ch.c.send(&sshproto.Request{ID: ch.id, Type: r.Type, WantReply: r.WantReply, Payload: r.Payload})
			if r.WantReply {
				answer = <-ch.replies
				ok = answer.ok
			}
		}
		_ = r.Reply(ok, nil) // fails only if the client has left
		if answer.sent != nil {
			close(answer.sent)
		}
	}
	ch.c.send(&sshproto.Closed{ID: ch.id})
	<-sent
	<-received
	ch.stream.Release()
}

// input sends the client's data to the daemon. Data that the daemon does not take is dropped.
func (ch *channel) input() {
	_, err := io.Copy(struct{ io.Writer }{ch.stream}, ch)
	if err == nil {
		err = ch.stream.CloseWrite()
	}
	if err != nil {
		_, _ = io.Copy(io.Discard, ch)
	}
}

// output forwards the daemon's data to the client until the daemon closes the channel.
func (ch *channel) output() {
	defer close(ch.replies)
	defer ch.c.send(&sshproto.Sent{ID: ch.id})
	defer ch.Close() // fails only if the client has left
	for {
		kind, body, err := ch.stream.Next()
		if err != nil {
			return
		}
		switch kind {
		case sshproto.Data:
			_, err = ch.Write(body)
		case sshproto.Errors:
			_, err = ch.Stderr().Write(body)
		case sshproto.EOF:
			err = ch.CloseWrite()
		case sshproto.Reply:
			sent := make(chan struct{})
			ch.replies <- reply{len(body) == 1 && body[0] == 1, sent}
			<-sent
		case sshproto.Exit:
			var m *sshproto.Request
			if m, err = sshproto.ParseExit(body); err == nil {
				_, err = ch.SendRequest(m.Type, false, m.Payload)
			}
		}
		if err != nil { // the client has closed the channel, so the daemon's writes must fail
			_ = ch.stream.Close() // never fails
			return
		}
	}
}
