package mcphttp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
)

// transport carries requests to a handler of this process, as if the client of a message had sent
// them: over its connection, with its credentials and the message's id.
type transport struct {
	handler    http.Handler
	values     context.Context // of the message: its connection's peer and address
	header     http.Header
	host       string
	remoteAddr string
	tls        *tls.ConnectionState
}

func newTransport(handler http.Handler, message *http.Request) *transport {
	t := &transport{handler: handler, values: message.Context(), header: http.Header{}, host: message.Host,
		remoteAddr: message.RemoteAddr, tls: message.TLS}
	for _, name := range []string{"Authorization", auth.TokenHeader, "User-Agent"} {
		if v := message.Header.Values(name); len(v) > 0 {
			t.header[http.CanonicalHeaderKey(name)] = v
		}
	}
	t.header.Set(audit.RequestIDHeader, audit.From(message.Context()).RequestID)
	return t
}

// RoundTrip implements http.RoundTripper. The handler runs until it has answered, or the request's
// context ends, or the body of the answer is closed.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(joined{r.Context(), t.values})
	inner := r.Clone(ctx)
	for name, v := range t.header {
		inner.Header[name] = v
	}
	inner.Host, inner.RemoteAddr, inner.TLS, inner.RequestURI = t.host, t.remoteAddr, t.tls, r.URL.RequestURI()
	inner.URL.Scheme, inner.URL.Host = "", ""
	if inner.Body == nil {
		inner.Body = http.NoBody
	}
	from, to := io.Pipe()
	w := &answer{header: http.Header{}, to: to, begun: make(chan struct{})}
	go func() {
		defer cancel()
		err := serve(t.handler, w, inner)
		inner.Body.Close()
		w.WriteHeader(http.StatusOK) // of a handler that wrote nothing
		to.CloseWithError(err)
	}()
	select {
	case <-w.begun:
	case <-r.Context().Done():
	}
	if err := r.Context().Err(); err != nil { // what a handler says that was told to end is no answer
		from.Close()
		return nil, err
	}
	return &http.Response{
		StatusCode: w.status, Status: fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: &body{from, cancel}, ContentLength: -1, Request: r,
	}, nil
}

// joined is the context of a call with the values of a message below its own.
type joined struct {
	context.Context
	values context.Context
}

// Value implements context.Context.
func (j joined) Value(key any) any {
	if v := j.Context.Value(key); v != nil {
		return v
	}
	return j.values.Value(key)
}

// serve calls a handler and returns nil, or what its panic says: the server of a connection would
// recover from that too.
func serve(h http.Handler, w http.ResponseWriter, r *http.Request) (err error) {
	defer func() {
		p := recover()
		aborted, _ := p.(error)
		switch {
		case p == nil:
		case errors.Is(aborted, http.ErrAbortHandler):
			err = io.ErrUnexpectedEOF
		default:
			err = fmt.Errorf("%s %s: panic: %v\n%s", r.Method, r.URL.Path, p, debug.Stack())
		}
	}()
	h.ServeHTTP(w, r)
	return nil
}

// answer is the http.ResponseWriter of a handler, whose body the caller reads as it comes.
type answer struct {
	header http.Header
	to     *io.PipeWriter

	once   sync.Once
	status int
	sent   http.Header
	begun  chan struct{} // closed when status and sent are set
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if status < http.StatusOK {
		return // informational: the answer is yet to come
	}
	a.once.Do(func() {
		a.status, a.sent = status, a.header.Clone()
		close(a.begun)
	})
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	n, err := a.to.Write(p)
	if errors.Is(err, io.ErrClosedPipe) {
		err = errors.New("the caller has gone")
	}
	return n, err
}

// FlushError is for http.ResponseController: nothing is kept, but the head of the answer may be due.
func (a *answer) FlushError() error {
	a.WriteHeader(http.StatusOK)
	return nil
}

// Flush implements http.Flusher.
func (a *answer) Flush() { _ = a.FlushError() } // it has none

// SetReadDeadline is for http.ResponseController: the body of a request is here already.
func (a *answer) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline is for http.ResponseController: who reads is in this process, and gives up with
// its context.
func (a *answer) SetWriteDeadline(time.Time) error { return nil }

// body is the body of an answer: who closes it needs no more of it.
type body struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.cancel()
	return b.ReadCloser.Close()
}
