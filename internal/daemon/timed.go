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

// timed limits the time that a client takes to receive an answer of the handler next. Without a
// limit, a client that sends a request and reads nothing would hold the connection and the answer
// in memory for ever: the idle timeout does not apply during a request. Streams set write deadlines
// of their own while they make progress, so for a stream this limit covers only the bytes that
// remain when the stream's handler returns.
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

	begun    bool // the deadline is set, by this package or by a stream
	hijacked bool
}

// Write implements http.ResponseWriter.
func (t *timedWriter) Write(p []byte) (int, error) {
	if !t.begun {
		_ = t.SetWriteDeadline(time.Now().Add(t.limit)) // connections of some tests have no deadlines
	}
	return t.ResponseWriter.Write(p)
}

// SetWriteDeadline is called by http.ResponseController.
func (t *timedWriter) SetWriteDeadline(at time.Time) error {
	t.begun = true
	return http.NewResponseController(t.ResponseWriter).SetWriteDeadline(at)
}

// Hijack implements http.Hijacker. The caller sets the deadlines of the connection from then on.
func (t *timedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	t.hijacked = true
	return http.NewResponseController(t.ResponseWriter).Hijack()
}

// Unwrap lets http.ResponseController reach the connection.
func (t *timedWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// end sets the deadline for the bytes that net/http has buffered. The server removes the deadline
// after it has sent them.
func (t *timedWriter) end() {
	if !t.hijacked {
		_ = t.SetWriteDeadline(time.Now().Add(t.limit))
	}
}

// errorLog returns the log for messages of net/http. It logs only panics of handlers. All other
// messages are about data from clients, such as a broken TLS handshake. Any client could fill the
// log with such messages.
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
