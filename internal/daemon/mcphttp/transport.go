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

// transport passes requests to a handler in this process, as if the client of a message had sent
// them: over its connection, with its credentials and the message's id.
type transport struct {
	handler    http.Handler
	log        *slog.Logger
	values     context.Context // of the message: its connection's peer and address
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

// RoundTrip implements http.RoundTripper. The handler runs until it has answered, the request's
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
		err := t.serve(w, inner)
		inner.Body.Close()
		if errors.Is(err, errPanic) && w.isFresh() {
			clear(w.header)
			face.WriteProblem(w, err)
			err = nil
		}
		w.WriteHeader(http.StatusOK) // of a handler that wrote nothing
		to.CloseWithError(err)
	}()
	select {
	case <-w.begun:
	case <-r.Context().Done():
	}
	if err := r.Context().Err(); err != nil { // after a cancellation the handler's answer is meaningless
		from.Close()
		return nil, err
	}
	var answered io.ReadCloser = &body{from, cancel}
	if strings.HasPrefix(w.sent.Get("Content-Type"), "application/json") { // others are read as streams
		answered = &decoded{ReadCloser: answered, of: &t.held}
	}
	return &http.Response{
		StatusCode: w.status, Status: fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: answered, ContentLength: -1, Request: r,
	}, nil
}

// joined is the context of a call that falls back to the values of a message's context.
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

// errPanic is the error for the client if a handler panicked. The daemon's log has the details.
var errPanic = errors.New("internal error: the daemon's log says more")

// serve calls the handler and recovers from its panic, as the server of a connection would. It returns
// an error if the answer is incomplete.
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

// answer is the http.ResponseWriter of a handler. The caller reads the body as it is written.
type answer struct {
	header http.Header
	to     *io.PipeWriter

	once   sync.Once
	status int
	sent   http.Header
	begun  chan struct{} // closed when status and sent are set
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
		return // informational: the final answer follows
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

// FlushError is called by http.ResponseController. Nothing is buffered, but the header of the
// answer may not have been sent.
func (a *answer) FlushError() error {
	a.WriteHeader(http.StatusOK)
	return nil
}

// Flush implements http.Flusher.
func (a *answer) Flush() { _ = a.FlushError() } // there is no error to return

// SetReadDeadline is called by http.ResponseController. The request's body is in memory already.
func (a *answer) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline is called by http.ResponseController. The reader is in this process, and stops
// when its context ends.
func (a *answer) SetWriteDeadline(time.Time) error { return nil }

// held counts the answers that a message decodes against the message's share. A request gives its
// own share back when its answer has been read, but the caller then still has the answer. So the
// share has the most that was decoded at once.
type held struct {
	share *face.Share

	mu        sync.Mutex
	now, most int // bytes of open answers
}

// decoded is a body that the caller decodes as a whole.
type decoded struct {
	io.ReadCloser
	of *held
	n  int // bytes read
}

// Read implements io.Reader. Without memory for more it returns face.ErrNoMemory.
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
