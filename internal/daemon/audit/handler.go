package audit

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"net"
	"net/http"
	"regexp"
	"time"
)

// RequestIDHeader carries the id of a request, in the request and in the answer. If the client
// sends a valid id, the daemon uses it. If not, the daemon makes an id.
const RequestIDHeader = "X-Request-Id"

// properID excludes characters that a terminal, a shell or a log could interpret.
var properID = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)

type entryKey struct{}

// From returns the entry of a request, so that handlers can fill in its fields. A handler may
// change the entry until the handler returns. If Handler does not serve the request, the entry is
// discarded.
func From(ctx context.Context) *Entry {
	if e, ok := ctx.Value(entryKey{}).(*Entry); ok {
		return e
	}
	return &Entry{}
}

// Handler returns a handler that passes requests on to the given handler, and writes a line for
// each request, including refused requests. It then calls done() with the entry, and with an error
// if the entry could not be written.
func (l *Log) Handler(next http.Handler, done func(Entry, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := &Entry{Time: time.Now(), RequestID: r.Header.Get(RequestIDHeader), Method: r.Method, Path: r.URL.Path,
			UserAgent: r.UserAgent(), Remote: r.RemoteAddr}
		if !properID.MatchString(e.RequestID) {
			e.RequestID = NewID()
		}
		w.Header().Set(RequestIDHeader, e.RequestID)
		rec := &recorder{ResponseWriter: w, status: http.StatusOK}
		defer func() { // deferred, because a handler may abort the connection with a panic
			e.Status, e.LatencyUS = rec.status, time.Since(e.Time).Microseconds()
			done(*e, l.Write(*e))
		}()
		next.ServeHTTP(rec, r.WithContext(context.WithValue(r.Context(), entryKey{}, e)))
	})
}

// NewID returns a new id for a request that has none.
func NewID() string {
	var b [12]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Hijack implements http.Hijacker. It records status 101, because a handler that takes over the
// connection upgrades it.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	r.status = http.StatusSwitchingProtocols
	return http.NewResponseController(r.ResponseWriter).Hijack()
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
