package stack

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/forkd/forkd/internal/net/policy"
)

// takeUDP begins a flow with the first packet between a pair of ports. Where it does not, the stack
// answers that the port is unreachable.
func (s *Stack) takeUDP(r *udp.ForwarderRequest) bool {
	id := r.ID()
	to := destination(id.LocalAddress, id.LocalPort)
	if !s.opens.Allow() {
		s.refused(record{protocol: "udp", address: to}, openRate)
		return false
	}
	s.makeRoomUDP()
	f, refusal := s.begin(policy.UDP, to)
	if f == nil {
		s.refused(record{protocol: "udp", address: to}, refusal)
		return false
	}
	if s.decide(f, nil) != policy.Pass {
		s.end(f)
		return false
	}
	out, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		f.fail(err)
		s.end(f)
		return false
	}
	c := &conn{wq: &waiter.Queue{}}
	var failed tcpip.Error
	if c.ep, failed = r.CreateEndpoint(c.wq); failed != nil {
		f.fail(errors.New(failed.String()))
		_ = out.Close()
		s.end(f)
		return true
	}
	s.tasks.Go(func() { s.relayUDP(f, c, out) })
	return true
}

// makeRoomUDP ends the UDP flow that was unused for longest if there are too many.
func (s *Stack) makeRoomUDP() {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, oldest := 0, (*flow)(nil)
	for f := range s.flows {
		if f.Protocol == policy.UDP && f.ctx.Err() == nil {
			n++
			if oldest == nil || f.last.Load() < oldest.last.Load() {
				oldest = f
			}
		}
	}
	if n >= maxUDP {
		oldest.killLocked(errRoom)
	}
}

// relayUDP forwards packets both ways until the flow is idle for too long or the outside answers
// that there is nobody.
func (s *Stack) relayUDP(f *flow, c *conn, out *net.UDPConn) {
	defer s.end(f)
	defer context.AfterFunc(f.ctx, func() {
		c.ep.Close()
		_ = out.Close()
	})()
	s.tasks.Go(func() {
		defer f.cancel()
		if err := s.upwardUDP(f, c, out); err != nil {
			f.fail(err)
		}
	})
	if err := s.downwardUDP(f, c, out); err != nil && f.ctx.Err() == nil {
		f.fail(err)
	}
	f.cancel()
	c.ep.Close()
	_ = out.Close()
}

func (s *Stack) upwardUDP(f *flow, c *conn, out *net.UDPConn) error {
	entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventErr | waiter.EventHUp)
	c.wq.EventRegister(&entry)
	defer c.wq.EventUnregister(&entry)
	pool := &s.host.chunks
	for {
		chunk := pool.take()
		w := tcpip.SliceWriter(*chunk)
		result, err := c.ep.Read(&w, tcpip.ReadOptions{})
		if err == nil {
			if s.up.AllowN(time.Now(), result.Count) {
				n, _ := out.Write((*chunk)[:result.Count]) // an error is that of an earlier packet, and comes to the reader
				f.up.Add(uint64(n))
				f.touch()
			}
			pool.give(chunk)
			continue
		}
		pool.give(chunk)
		if _, wait := err.(*tcpip.ErrWouldBlock); !wait {
			return nil
		}
		select {
		case <-ready:
		case <-f.ctx.Done():
			return nil
		}
	}
}

func (s *Stack) downwardUDP(f *flow, c *conn, out *net.UDPConn) error {
	raw, err := out.SyscallConn()
	if err != nil {
		return err
	}
	in := gonet.NewUDPConn(c.wq, c.ep)
	pool := &s.host.chunks
	for {
		chunk, n, err := receive(raw, pool)
		if errors.Is(err, io.EOF) {
			continue // an empty packet, which no program misses
		}
		if err != nil {
			return err
		}
		if s.down.AllowN(time.Now(), n) {
			n, _ = in.Write((*chunk)[:n]) // without room in the guest's queue the packet is lost, as packets are
			f.down.Add(uint64(n))
			f.touch()
		}
		pool.give(chunk)
	}
}

// maxQuery is the longest DNS query in bytes: one name of 255, and options.
const maxQuery = 2048

// maxQueries is how many DNS queries of one sandbox may wait for an answer.
const maxQueries = 64

// listenDNS answers queries over UDP.
func (s *Stack) listenDNS() error {
	at := tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFrom4(gatewayDNS.Addr().As4()), Port: gatewayDNS.Port()}
	in, err := gonet.DialUDP(s.ipstack, &at, nil, ipv4.ProtocolNumber)
	if err != nil {
		return err
	}
	s.tasks.Go(func() {
		defer context.AfterFunc(s.ctx, func() { _ = in.Close() })()
		waiting := make(chan struct{}, maxQueries)
		buf := make([]byte, maxQuery)
		for {
			n, from, err := in.ReadFrom(buf)
			if err != nil {
				return
			}
			select {
			case waiting <- struct{}{}:
			default:
				s.counters.Dropped.Add(1) // it will be asked again
				continue
			}
			query := append([]byte(nil), buf[:n]...)
			s.tasks.Go(func() {
				defer func() { <-waiting }()
				if answer := s.dns.Answer(s.ctx, query, false); answer != nil {
					_, _ = in.WriteTo(answer, from)
				}
			})
		}
	})
	return nil
}
