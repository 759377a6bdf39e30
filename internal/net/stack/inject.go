package stack

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"github.com/forkd/forkd/internal/net/inject"
	"github.com/forkd/forkd/internal/net/policy"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// Reasons for refusing connections to the host of a secret, or to a held host, although the policy
// permits them.
const (
	noTrust = "secret-trust" // the daemon has not sent the root certificates yet
	// tooManySecret: this process already terminates TLS for too many connections. Each connection
	// takes up to injectBytes.
	tooManySecret = "secret-limit"
)

// Ports of HTTP. Secrets are added only at httpsPort.
const (
	httpPort  = 80
	httpsPort = 443
)

// SetTrust sets the CA and root certificates that are needed to add secrets.
func (h *Host) SetTrust(t *inject.Trust) { h.trust.Store(t) }

// mayInject reports whether a flow could be for the host of a secret. If so, the first bytes of the
// flow must be read to find out.
func (s *Stack) mayInject(f *flow) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.secrets) > 0 && f.To.Port() == httpsPort
}

// proxied is for a flow whose requests this process reads. It says what to do with the requests.
type proxied struct {
	secrets []netproto.Secret // headers to add
	held    bool              // whether the flow's server is held
}

// proxyFor returns what to do with the requests of a permitted flow. The result is nil if the flow can
// be forwarded unread. If the requests cannot be handled safely, proxyFor refuses the flow.
func (s *Stack) proxyFor(f *flow) (need *proxied, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	need = &proxied{held: s.holdsLocked(f)}
	for _, secret := range s.secrets {
		if f.To.Port() == httpsPort && secret.Host == f.Server {
			need.secrets = append(need.secrets, secret)
		}
	}
	if len(need.secrets) == 0 && !need.held {
		return nil, true
	}
	reason := ""
	switch {
	case !f.given(f.Server): // the address may belong to another server than the guest claims
		reason = string(policy.NameAddress)
	case f.To.Port() == httpsPort && s.host.trust.Load() == nil:
		reason = noTrust
	case s.injected == maxInjected:
		reason = tooManySecret
	case !s.host.injects.takeFor(injectBytes, s.injected+1, fewInjected):
		reason = tooManyHost
	}
	if reason != "" {
		f.verdict, f.reason = policy.Refuse.String(), reason
		return nil, false
	}
	s.injected++
	return need, true
}

// inject takes the server's place on a connection, to hold its requests and to add secrets to them.
func (s *Stack) inject(f *flow, c *conn, sent []byte, need *proxied) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.injected--
		s.host.injects.give(injectBytes)
	}()
	defer context.AfterFunc(f.ctx, c.ep.Abort)()
	var dialed atomic.Bool
	p := &inject.Proxy{
		Trust: s.host.trust.Load(), Plain: f.To.Port() != httpsPort, Host: f.Server, Secret: need.secrets, Failed: f.fail,
		Dial: func(ctx context.Context) (net.Conn, error) {
			dialed.Store(true)
			f.held.Store(false)
			return s.host.dial(ctx, f)
		},
	}
	if need.held {
		p.Pass = func(w http.ResponseWriter, r *http.Request, url string) bool {
			f.held.Store(!dialed.Load()) // false after Dial, because then the server receives requests
			return s.effects.Pass(w, r, url, c.open)
		}
	}
	defer func() {
		if f.held.Load() { // the statistics must not list the connection as allowed
			s.refuse(f, heldRequests)
		}
	}()
	if err := p.Serve(f.ctx, &counted{Conn: gonet.NewTCPConn(c.wq, c.ep), flow: f, sent: sent}); err != nil {
		f.fail(err)
		c.ep.Abort()
	}
}

// counted is a guest's connection whose bytes are counted and limited to the sandbox's rate.
type counted struct {
	net.Conn
	flow *flow
	sent []byte // bytes that were already read from the guest
}

func (c *counted) Read(p []byte) (n int, err error) {
	if len(c.sent) > 0 {
		n = copy(p, c.sent)
		c.sent = c.sent[n:]
	} else {
		n, err = c.Conn.Read(p)
	}
	c.flow.up.Add(uint64(n))
	c.flow.touch()
	if wait := c.flow.stack.up.WaitN(c.flow.ctx, n); wait != nil {
		return n, context.Canceled
	}
	return n, err
}

func (c *counted) Write(p []byte) (int, error) {
	if err := c.flow.stack.down.WaitN(c.flow.ctx, len(p)); err != nil {
		return 0, context.Canceled
	}
	n, err := c.Conn.Write(p)
	c.flow.down.Add(uint64(n))
	c.flow.touch()
	return n, err
}
