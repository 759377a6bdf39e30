// Package inject serves one HTTP or HTTPS connection in place of its server. It terminates the
// guest's TLS with its own certificate. To each request, it adds headers with secrets that the
// guest does not know. It can ask its caller whether the request is allowed to go on. Then it
// forwards the request to the real server, whose certificate it checks.
//
// It speaks HTTP/1.1 on both sides, with net/http. It parses a request completely and writes a new
// one from the parsed form, so a guest cannot hide a second request in the first. It forwards to
// one host only, over connections that its caller makes. The caller decides whether the guest may
// connect to the host, and to which address. Errors contain nothing from a request or an answer,
// because a server could echo the secret.
package inject

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forkd/forkd/internal/proto/netproto"
)

// Limits of one connection.
const (
	handshakeTime = 10 * time.Second // time limit for a handshake, with the guest or with the server
	headerTime    = 30 * time.Second // time limit for all headers of a request, from its first byte on
	maxHeaders    = 64 << 10         // maximum size of the headers of a request, in bytes
	maxAnswer     = 64 << 10         // maximum size of the headers of an answer, in bytes
)

// Proxy serves connections of a guest to Host, port 443 or, without TLS, port 80.
type Proxy struct {
	Trust  *Trust // not used if Plain is set
	Plain  bool   // whether neither side uses TLS; then Secret must be empty
	Host   string // the server's name in lower case, without a trailing dot
	Secret []netproto.Secret
	Dial   func(context.Context) (net.Conn, error) // returns a connection to the server
	Failed func(error)                             // called with the reason why a server could not be reached

	// Pass reports whether a request with the given URL may go to the server. If not, Pass has
	// answered the request. The http.ResponseWriter supports read deadlines. If Pass is nil, all
	// requests may go to the server.
	Pass func(w http.ResponseWriter, r *http.Request, url string) bool

	server atomic.Pointer[headed] // the latest connection to the server
}

// Serve serves a connection from its first byte on. It returns when the connection has ended. If ctx
// ends, requests that are in progress are cancelled.
func (p *Proxy) Serve(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	if !p.Plain {
		secure, err := p.greet(ctx, conn)
		if err != nil {
			return err
		}
		conn = secure
	}
	transport := p.transport()
	defer transport.CloseIdleConnections()
	guest := &headed{Conn: conn}
	guest.expect()
	only := newListener(guest)
	forward := p.handler(&answers{transport, &p.server})
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			guest.parsed()
			forward.ServeHTTP(w, r)
		}),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateIdle { // between two requests: headers follow
				guest.expect()
			}
		},
		ErrorLog: silent, MaxHeaderBytes: maxHeaders, ReadHeaderTimeout: headerTime,
		IdleTimeout: -1, BaseContext: func(net.Listener) context.Context { return ctx },
		DisableGeneralOptionsHandler: true, // send "OPTIONS *" to the server, instead of answering it here
	}
	_ = server.Serve(only) // always returns an error, after the connection has ended
	return nil
}

// greet makes the TLS connection with the guest.
func (p *Proxy) greet(ctx context.Context, conn net.Conn) (*tls.Conn, error) {
	config, err := p.Trust.guestConfig(p.Host)
	if err != nil {
		return nil, err
	}
	secure := tls.Server(conn, config)
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("TLS with the guest: %w", err)
	}
	return secure, nil
}

// silent discards the log of net/http. A guest could fill this log, and the log could quote the
// guest's data.
var silent = log.New(io.Discard, "", 0)

// transport carries requests to the server, over one connection at a time.
func (p *Proxy) transport() *http.Transport {
	return &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return p.dial(ctx) },
		DialTLSContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return p.dial(ctx) },
		MaxConnsPerHost:        1,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxAnswer,
		ExpectContinueTimeout:  time.Second,
		Protocols:              http1(),
	}
}

func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// unreachable is an error that occurred while connecting to the server. The proxy connects before
// it sends the first request, so the error's text contains no secret.
type unreachable struct{ error }

// dial connects to the server and, with TLS, verifies its identity.
func (p *Proxy) dial(ctx context.Context) (net.Conn, error) {
	conn, err := p.Dial(ctx)
	if err != nil {
		return nil, unreachable{err}
	}
	if !p.Plain {
		ctx, cancel := context.WithTimeout(ctx, handshakeTime)
		defer cancel()
		secure := tls.Client(conn, p.Trust.serverConfig(p.Host))
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, unreachable{fmt.Errorf("TLS with %s: %w", p.Host, err)}
		}
		conn = secure
	}
	h := &headed{Conn: conn}
	h.expect()
	p.server.Store(h)
	return h, nil
}

// answers is a RoundTripper that bounds the headers of each answer.
type answers struct {
	http.RoundTripper
	server *atomic.Pointer[headed] // the present connection; there is only one at a time
}

// RoundTrip must not be called concurrently.
func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	if h := a.server.Load(); h != nil {
		h.expect()
	}
	resp, err := a.RoundTripper.RoundTrip(r)
	if h := a.server.Load(); h != nil {
		h.parsed()
	}
	return resp, err
}

// handler returns a handler that forwards requests to the server. If check refuses a request, the
// handler itself answers it.
func (p *Proxy) handler(transport http.RoundTripper) http.Handler {
	forward := &httputil.ReverseProxy{
		Rewrite:       p.rewrite,
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      silent,
		ErrorHandler:  p.answerError,
		// removed, so that clients do not switch to HTTP/3
		ModifyResponse: func(r *http.Response) error { r.Header.Del("Alt-Svc"); return nil },
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text, status := p.check(r); status != 0 {
			w.Header().Set("Connection", "close")
			http.Error(w, "forkd: "+text, status)
			return
		}
		if p.Pass != nil && !p.Pass(w, r, p.scheme()+"://"+p.Host+r.URL.RequestURI()) {
			return
		}
		// The server may begin its answer before the proxy has read the end of the request. Without
		// full duplex, package http would then close the request's body, and the proxy would cut
		// the answer off.
		_ = http.NewResponseController(w).EnableFullDuplex() // an error is impossible: guests speak HTTP/1
		forward.ServeHTTP(w, r)
	})
}

func (p *Proxy) scheme() string {
	if p.Plain {
		return "http"
	}
	return "https"
}

// port returns the port that a Host header may have after the name.
func (p *Proxy) port() string {
	if p.Plain {
		return ":80"
	}
	return ":443"
}

// check refuses requests that are not clearly for Host. If a request's URL and Host header differ,
// some servers use the URL and others use the header. check also refuses TRACE, because the answer
// to TRACE would contain the secret.
func (p *Proxy) check(r *http.Request) (text string, status int) {
	switch {
	case r.Method == http.MethodConnect || r.Method == http.MethodTrace || r.Method == "TRACK":
		return "this method is not permitted where a secret is added or effects are held", http.StatusMethodNotAllowed
	case r.URL.Host != "" || r.URL.Scheme != "" || r.URL.Opaque != "":
		return "write the path of the request only", http.StatusBadRequest
	case strings.TrimSuffix(strings.ToLower(r.Host), p.port()) != p.Host:
		return "this connection is for " + p.Host, http.StatusMisdirectedRequest
	}
	return "", 0
}

// rewrite builds the request to the server. ReverseProxy has already removed the headers that the
// guest's Connection header names. The secret headers are added afterwards, so a guest cannot have
// them removed by naming them in that header.
func (p *Proxy) rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = p.scheme(), p.Host, p.Host
	r.Out.URL.RawQuery = r.In.URL.RawQuery // copied even if it does not parse
	r.Out.Trailer = nil
	for _, s := range p.Secret {
		r.Out.Header.Set(s.Header, string(s.Value))
	}
}

// answerError sends an answer to the guest if the server has sent no answer.
func (p *Proxy) answerError(w http.ResponseWriter, _ *http.Request, err error) {
	text := "the server gave no answer"
	if u, ok := errors.AsType[unreachable](err); ok {
		text = u.Error()
		p.Failed(u.error)
	}
	http.Error(w, "forkd: "+text, http.StatusBadGateway)
}

// listener is a net.Listener that accepts one connection. The next Accept waits until that
// connection is closed, and then fails.
type listener struct {
	net.Conn
	first chan net.Conn
	done  chan struct{}
	end   sync.Once
}

func newListener(c net.Conn) *listener {
	l := &listener{Conn: c, first: make(chan net.Conn, 1), done: make(chan struct{})}
	l.first <- l
	return l
}

// Close closes the connection and the listener.
func (l *listener) Close() error {
	defer l.end.Do(func() { close(l.done) })
	return l.Conn.Close()
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.first:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Addr() net.Addr { return l.LocalAddr() }
