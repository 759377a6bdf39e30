package daemon

import (
	"bufio"
	"bytes"
	"log"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// timed gives each answer of next a time in which its client has to take it. Otherwise whoever asks
// for something and reads nothing would keep the connection, and the answer in memory, for ever: a
// connection with a request is not idle. Streams set write deadlines of their own, as they get on,
// and have this time only for what is left when their handler ends.
func timed(next http.Handler, limit time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := &timedWriter{ResponseWriter: w, limit: limit}
		defer t.end()
		next.ServeHTTP(t, r)
	})
}

type timedWriter struct {
	http.ResponseWriter
	limit time.Duration

	begun    bool // the deadline is set, or a stream's own business
	hijacked bool
}

// Write implements http.ResponseWriter.
func (t *timedWriter) Write(p []byte) (int, error) {
	if !t.begun {
		_ = t.SetWriteDeadline(time.Now().Add(t.limit)) // a connection without deadlines is a test's
	}
	return t.ResponseWriter.Write(p)
}

// SetWriteDeadline is for http.ResponseController.
func (t *timedWriter) SetWriteDeadline(at time.Time) error {
	t.begun = true
	return http.NewResponseController(t.ResponseWriter).SetWriteDeadline(at)
}

// Hijack implements http.Hijacker: what becomes of the connection is its new owner's business.
func (t *timedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	t.hijacked = true
	return http.NewResponseController(t.ResponseWriter).Hijack()
}

// Unwrap lets http.ResponseController reach the connection.
func (t *timedWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// end bounds how long what net/http has in its buffers may wait for the client. The server takes
// the deadline away after that.
func (t *timedWriter) end() {
	if !t.hijacked {
		_ = t.SetWriteDeadline(time.Now().Add(t.limit))
	}
}

// errorLog is where net/http says what it has to say. All but panics of ours is about what clients
// send, such as a broken TLS handshake: anybody could fill the log with that.
func errorLog(l *slog.Logger) *log.Logger { return log.New(serverLog{l}, "", 0) }

type serverLog struct{ log *slog.Logger }

func (s serverLog) Write(p []byte) (int, error) {
	text := string(bytes.TrimSpace(p))
	if bytes.Contains(p, []byte("panic serving")) {
		s.log.Error("http server", "error", text)
	} else {
		s.log.Debug("http server", "error", text)
	}
	return len(p), nil
}
