package stack

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/forkd/forkd/internal/net/peek"
	"github.com/forkd/forkd/internal/net/policy"
)

// conn is the connection with the guest.
type conn struct {
	ep tcpip.Endpoint
	wq *waiter.Queue
}

// open reports whether both directions of the connection are still open.
func (c *conn) open() bool { return tcp.EndpointState(c.ep.State()) == tcp.StateEstablished }

func destination(addr tcpip.Address, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4(addr.As4()), port)
}

// accept completes the handshake with the guest.
func (s *Stack) accept(r *tcp.ForwarderRequest, b buffers) (*conn, error) {
	c := &conn{wq: &waiter.Queue{}}
	var err tcpip.Error
	if c.ep, err = r.CreateEndpoint(c.wq); err != nil {
		r.Complete(true)
		return nil, errors.New(err.String())
	}
	r.Complete(false)
	b.set(c.ep)
	return c, nil
}

// takeTCP serves a connection from its SYN to its end. It runs in a goroutine of the connection.
func (s *Stack) takeTCP(r *tcp.ForwarderRequest) {
	if !s.enter() {
		r.Complete(false)
		return
	}
	defer s.tasks.Done()
	id := r.ID()
	to := destination(id.LocalAddress, id.LocalPort)
	f, refusal := s.begin(policy.TCP, to)
	if f == nil {
		r.Complete(true)
		s.refused(record{protocol: "tcp", address: to}, refusal)
		return
	}
	if to == gatewayDNS {
		s.takeDNS(f, r)
		return
	}
	defer s.end(f)
	switch s.decide(f, nil) {
	case policy.Pass:
		if s.mayInject(f) {
			s.peekFirst(f, r)
			return
		}
		s.dialFirst(f, r)
	case policy.Peek:
		s.peekFirst(f, r)
	default:
		r.Complete(true)
	}
}

// dialFirst dials the server before it answers the guest's SYN.
func (s *Stack) dialFirst(f *flow, r *tcp.ForwarderRequest) {
	out, err := s.host.dial(f.ctx, f)
	if err != nil {
		f.fail(err)
		// After a timeout the guest receives no answer. It will repeat its SYN, and we then dial
		// again.
		r.Complete(!isTimeout(err))
		return
	}
	c, err := s.accept(r, f.buffers())
	if err != nil {
		f.fail(err)
		breakOff(out)
		return
	}
	(&relay{flow: f, conn: c, out: out}).run(nil)
}

// peekFirst accepts the guest's connection and reads its first bytes, to learn the server's name,
// before it dials the server.
func (s *Stack) peekFirst(f *flow, r *tcp.ForwarderRequest) {
	done, ok := s.mayPeek(f)
	if !ok {
		r.Complete(true)
		return
	}
	defer done()
	c, err := s.accept(r, f.buffers())
	if err != nil {
		f.fail(err)
		return
	}
	stop := context.AfterFunc(f.ctx, c.ep.Abort)
	in := gonet.NewTCPConn(c.wq, c.ep)
	_ = in.SetReadDeadline(time.Now().Add(peekTime)) // never fails
	seen, err := peek.Server(in)
	if !stop() || err != nil && !isTimeout(err) || s.decide(f, &seen) != policy.Pass {
		c.ep.Abort()
		return
	}
	f.touch()
	need, ok := s.proxyFor(f)
	if !ok {
		c.ep.Abort()
		return
	}
	if need != nil {
		done()
		s.inject(f, c, seen.Sent, need)
		return
	}
	out, err := s.host.dial(f.ctx, f)
	if err != nil {
		f.fail(err)
		c.ep.Abort()
		return
	}
	(&relay{flow: f, conn: c, out: out, begun: done}).run(seen.Sent)
}

// mayPeek waits until the sandbox is allowed another connection that has not named its server, and
// counts the connection and its first bytes. The caller must call done when the connection and its
// bytes no longer count. The caller may call done more than once. If all sandboxes together have
// too many such connections, mayPeek refuses the flow, see room.takeFor.
func (s *Stack) mayPeek(f *flow) (done func(), ok bool) {
	select {
	case s.peeks <- struct{}{}:
	case <-f.ctx.Done():
		return nil, false
	}
	if !s.host.peeks.takeFor(peekBytes, len(s.peeks), fewPeeks) {
		<-s.peeks
		s.refuse(f, tooManyHost)
		return nil, false
	}
	return sync.OnceFunc(func() {
		s.host.peeks.give(peekBytes)
		<-s.peeks
	}), true
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout() || errors.Is(err, unix.ETIMEDOUT)
}

// takeDNS answers queries over TCP (RFC 7766), one after another.
func (s *Stack) takeDNS(f *flow, r *tcp.ForwarderRequest) {
	defer s.endDNS(f)
	c, err := s.accept(r, smallBuffers)
	if err != nil {
		return
	}
	defer context.AfterFunc(f.ctx, c.ep.Abort)()
	in := gonet.NewTCPConn(c.wq, c.ep)
	defer in.Close()
	for {
		_ = in.SetDeadline(time.Now().Add(dnsTCPTime))
		var length [2]byte
		if _, err := io.ReadFull(in, length[:]); err != nil {
			return
		}
		query := make([]byte, min(binary.BigEndian.Uint16(length[:]), maxQuery))
		if _, err := io.ReadFull(in, query); err != nil {
			return
		}
		answer := s.answer(f.ctx, query, true)
		if answer == nil {
			return
		}
		_ = in.SetDeadline(time.Now().Add(dnsTCPTime))
		if _, err := in.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

// endDNS ends a DNS connection, which is not a flow to the outside.
func (s *Stack) endDNS(f *flow) {
	f.cancel()
	s.host.giveSocket(f.Protocol)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.flows, f)
	s.counters.Open.Store(int32(len(s.flows)))
}
