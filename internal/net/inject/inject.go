// Package inject is the server of one HTTPS connection in its place: it ends the guest's TLS under
// a certificate of its own, sets headers that the guest does not know in each request, and forwards
// the request to the real server, whose certificate it checks.
//
// It speaks HTTP/1.1 on both sides, by net/http: a request is read whole and written anew, so
// nothing is smuggled past the headers. It forwards to one host only, over connections that its
// caller makes; whether the guest may connect there, and which address the host has, is the
// caller's to decide. No error of it holds anything that a guest or a server has said in a request
// or an answer, since a server could say the secret.
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
	handshakeTime = 10 * time.Second // with the guest, and with the server
	headerTime    = 30 * time.Second // for the headers of a request, once they have begun
	maxHeaders    = 64 << 10         // bytes, of a request
	maxAnswer     = 64 << 10         // bytes, of the headers of an answer
)

// Proxy serves connections of a guest to Host, port 443.
type Proxy struct {
	Trust  *Trust
	Host   string // in lower case and without a dot at its end
	Secret []netproto.Secret
	Dial   func(context.Context) (net.Conn, error) // connects to the server
	Failed func(error)                             // is told why a server could not be reached

	server atomic.Pointer[headed] // the latest connection to the server
}

// Serve takes a connection, whose first bytes are those of TLS, and returns when it has ended. The
// requests on it end with ctx.
func (p *Proxy) Serve(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	config, err := p.Trust.guestConfig(p.Host)
	if err != nil {
		return err
	}
	secure := tls.Server(conn, config)
	greet, cancel := context.WithTimeout(ctx, handshakeTime)
	err = secure.HandshakeContext(greet)
	cancel()
	if err != nil {
		return fmt.Errorf("TLS with the guest: %w", err)
	}
	transport := p.transport()
	defer transport.CloseIdleConnections()
	guest := &headed{Conn: secure}
	guest.expect()
	only := newListener(guest)
	forward := p.handler(&answers{transport, &p.server})
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			guest.parsed()
			forward.ServeHTTP(w, r)
		}),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateIdle { // another request may come
				guest.expect()
			}
		},
		ErrorLog: silent, MaxHeaderBytes: maxHeaders, ReadHeaderTimeout: headerTime,
		IdleTimeout: -1, BaseContext: func(net.Listener) context.Context { return ctx },
		DisableGeneralOptionsHandler: true, // "OPTIONS *" is the server's to answer
	}
	_ = server.Serve(only) // it ends with the connection
	return nil
}

// silent is for logs of net/http, which a guest could fill, and which could quote it.
var silent = log.New(io.Discard, "", 0)

// transport carries requests to the server, over one connection at a time.
func (p *Proxy) transport() *http.Transport {
	return &http.Transport{
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

// unreachable is why no request could be sent at all. Its text comes from before the first one.
type unreachable struct{ error }

// dial connects to the server and makes sure that it is the one it is meant to be.
func (p *Proxy) dial(ctx context.Context) (net.Conn, error) {
	conn, err := p.Dial(ctx)
	if err != nil {
		return nil, unreachable{err}
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	secure := tls.Client(conn, p.Trust.serverConfig(p.Host))
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, unreachable{fmt.Errorf("TLS with %s: %w", p.Host, err)}
	}
	h := &headed{Conn: secure}
	h.expect()
	p.server.Store(h)
	return h, nil
}

// answers has the headers of each answer counted.
type answers struct {
	http.RoundTripper
	server *atomic.Pointer[headed] // the connection; there is one at a time
}

// RoundTrip is called for one request at a time.
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

// handler answers what is not for the server, and forwards the rest.
func (p *Proxy) handler(transport http.RoundTripper) http.Handler {
	forward := &httputil.ReverseProxy{
		Rewrite:        p.rewrite,
		Transport:      transport,
		FlushInterval:  -1,
		ErrorLog:       silent,
		ErrorHandler:   p.answerError,
		ModifyResponse: func(r *http.Response) error { r.Header.Del("Alt-Svc"); return nil }, // HTTP/3 would pass us by
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text, status := p.check(r); status != 0 {
			w.Header().Set("Connection", "close")
			http.Error(w, "forkd: "+text, status)
			return
		}
		forward.ServeHTTP(w, r)
	})
}

// check refuses requests that are not plainly for Host. A server may believe the URL or the Host of
// a request where they differ, and TRACE is answered by the request as it came.
func (p *Proxy) check(r *http.Request) (text string, status int) {
	switch {
	case r.Method == http.MethodConnect || r.Method == http.MethodTrace || r.Method == "TRACK":
		return "this method does not pass where a secret is added", http.StatusMethodNotAllowed
	case r.URL.Host != "" || r.URL.Scheme != "" || r.URL.Opaque != "":
		return "write the path of the request only", http.StatusBadRequest
	case strings.TrimSuffix(strings.ToLower(r.Host), ":443") != p.Host:
		return "this connection is for " + p.Host, http.StatusMisdirectedRequest
	}
	return "", 0
}

// rewrite makes the request that the server gets. What the guest's Connection names is gone from it
// by now, so no guest can have our headers removed.
func (p *Proxy) rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "https", p.Host, p.Host
	r.Out.URL.RawQuery = r.In.URL.RawQuery // as it came, also where it does not parse
	r.Out.Trailer = nil
	for _, s := range p.Secret {
		r.Out.Header.Set(s.Header, string(s.Value))
	}
}

// answerError answers a request that got no answer.
func (p *Proxy) answerError(w http.ResponseWriter, _ *http.Request, err error) {
	text := "the server gave no answer"
	if u, ok := errors.AsType[unreachable](err); ok {
		text = u.Error()
		p.Failed(u.error)
	}
	http.Error(w, "forkd: "+text, http.StatusBadGateway)
}

// listener gives out one connection, and ends with it.
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

// Close is that of the connection and of the listener.
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
