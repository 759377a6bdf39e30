package mcphttp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
)

// transport passes the requests of a message's tools to a handler in this process. To the handler,
// they seem to come from the message's client, over its connection, with its credentials and the
// message's id.
type transport struct {
	handler    http.Handler
	log        *slog.Logger
	values     context.Context // context of the message, with the peer and the address of its connection
	header     http.Header
	host       string
	remoteAddr string
	tls        *tls.ConnectionState
	held       held
}

func newTransport(handler http.Handler, message *http.Request, log *slog.Logger) *transport {
	t := &transport{handler: handler, log: log, values: message.Context(), header: http.Header{}, host: message.Host,
		remoteAddr: message.RemoteAddr, tls: message.TLS, held: held{share: face.ShareOf(message)}}
	for _, name := range []string{"Authorization", auth.TokenHeader, "User-Agent"} {
		if v := message.Header.Values(name); len(v) > 0 {
			t.header[http.CanonicalHeaderKey(name)] = v
		}
	}
	t.header.Set(audit.RequestIDHeader, audit.From(message.Context()).RequestID)
	return t
}

// RoundTrip implements http.RoundTripper. The handler's context ends when the handler has answered,
// when the request's context ends, or when the body of the answer is closed.
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
		err := t.serve(w, inner)
		inner.Body.Close()
		if errors.Is(err, errPanic) && w.isFresh() {
			clear(w.header)
			face.WriteProblem(w, err)
			err = nil
		}
		w.WriteHeader(http.StatusOK) // sent if the handler has written nothing
		to.CloseWithError(err)
	}()
	select {
	case <-w.begun:
	case <-r.Context().Done():
	}
	if err := r.Context().Err(); err != nil { // after a cancellation the answer is meaningless
		from.Close()
		return nil, err
	}
	var answered io.ReadCloser = &body{from, cancel}
	// Only JSON is decoded as a whole; other answers are read as streams.
	if strings.HasPrefix(w.sent.Get("Content-Type"), "application/json") {
		answered = &decoded{ReadCloser: answered, of: &t.held}
	}
	return &http.Response{
		StatusCode: w.status, Status: fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: answered, ContentLength: -1, Request: r,
	}, nil
}

// joined is the context of a call. Its values include the values of the message's context.
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

// errPanic is the error that the client gets if the handler panics. The details are in the daemon's
// log.
var errPanic = errors.New("internal error: the daemon's log says more")

// serve calls the handler and recovers from a panic, as an HTTP server would. It returns an error
// if the answer is incomplete.
func (t *transport) serve(w http.ResponseWriter, r *http.Request) (err error) {
	defer func() {
		p := recover()
		aborted, _ := p.(error)
		switch {
		case p == nil:
		case errors.Is(aborted, http.ErrAbortHandler):
			err = io.ErrUnexpectedEOF
		default:
			t.log.Error("panic of a call by MCP", "method", r.Method, "path", r.URL.Path, "panic", p,
				"stack", string(debug.Stack()))
			err = errPanic
		}
	}()
	t.handler.ServeHTTP(w, r)
	return nil
}

// answer is the http.ResponseWriter of a handler. The reader of the body receives each part when
// the handler writes it.
type answer struct {
	header http.Header
	to     *io.PipeWriter

	once   sync.Once
	status int
	sent   http.Header
	begun  chan struct{} // closed when status and sent have their values
}

// isFresh reports whether nothing has been written yet.
func (a *answer) isFresh() bool {
	select {
	case <-a.begun:
		return false
	default:
		return true
	}
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if status < http.StatusOK {
		return // an interim answer; the final one follows
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

// FlushError is called by http.ResponseController. It sends the header if the header has not been
// sent. Nothing else is buffered.
func (a *answer) FlushError() error {
	a.WriteHeader(http.StatusOK)
	return nil
}

// Flush implements http.Flusher.
func (a *answer) Flush() { _ = a.FlushError() } // Flush cannot return the error

// SetReadDeadline is called by http.ResponseController. It has no effect: the request's body is in
// memory.
func (a *answer) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline is called by http.ResponseController. It has no effect: the reader is in this
// process and stops when its context ends.
func (a *answer) SetWriteDeadline(time.Time) error { return nil }

// held counts decoded answers against a message's share of memory. The tools of the message decode
// these answers. A request to the API releases its own share when its answer has been read, but the
// tool then still holds the answer. The share is charged for the maximum number of bytes that were
// held at the same time.
type held struct {
	share *face.Share

	mu        sync.Mutex
	now, most int // bytes of answers that are held now, and their maximum so far
}

// decoded is the body of an answer that a tool decodes as a whole.
type decoded struct {
	io.ReadCloser
	of *held
	n  int // bytes read so far
}

// Read implements io.Reader. It returns face.ErrNoMemory if the share of memory has no room for
// more bytes.
func (d *decoded) Read(p []byte) (int, error) {
	n, err := d.ReadCloser.Read(p)
	h := d.of
	h.mu.Lock()
	defer h.mu.Unlock()
	if more := h.now + n - h.most; more > 0 {
		if short := h.share.Keep(more); short != nil {
			return 0, short
		}
		h.most += more
	}
	h.now += n
	d.n += n
	return n, err
}

// Close implements io.Closer.
func (d *decoded) Close() error {
	d.of.mu.Lock()
	d.of.now -= d.n
	d.n = 0
	d.of.mu.Unlock()
	return d.ReadCloser.Close()
}

// body is the body of an answer. Closing it stops the handler.
type body struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.cancel()
	return b.ReadCloser.Close()
}
