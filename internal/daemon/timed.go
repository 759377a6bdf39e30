package daemon

import (
	"bufio"
	"bytes"
	"log"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/forkd/forkd/internal/daemon/auth"
)

// timed limits the time that a client takes to receive an answer. Without a limit, a client that
// sends a request and reads nothing would hold the connection and the answer in memory for ever:
// the idle timeout does not apply during a request. Streams set write deadlines of their own while
// they make progress, so for a stream this limit covers only the bytes that remain when the
// stream's handler returns.
//
// Over HTTP/2, timed also limits the number of answers that wait for their clients (see unread).
func timed(next http.Handler, limit time.Duration, answers *unread) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // removes http.Server.WriteTimeout
		t := &timedWriter{ResponseWriter: w, limit: limit}
		if r.ProtoMajor == 2 {
			t.place = answers.placeFor(r)
			defer t.place.leave()
			r = r.WithContext(auth.OnIdentified(r.Context(), t.place.identified))
		}
		next.ServeHTTP(t, r)
		t.end()
	})
}

type timedWriter struct {
	http.ResponseWriter
	limit time.Duration
	place *answerPlace // nil: HTTP/1.1

	begun    bool // the deadline is set, by this package or by a stream
	wrote    bool // the answer has a body
	hijacked bool
}

// Write implements http.ResponseWriter.
func (t *timedWriter) Write(p []byte) (int, error) {
	if t.place != nil && !t.wrote && t.place.isUnidentified() {
		t.place.enter() // the answer may be too long for net/http's buffer
	}
	if t.wrote = true; t.place != nil && t.place.full {
		return 0, errManyUnread
	}
	if !t.begun {
		_ = t.SetWriteDeadline(time.Now().Add(t.limit)) // connections of some tests have no deadlines
	}
	return t.ResponseWriter.Write(p)
}

// FlushError is called by http.ResponseController.
func (t *timedWriter) FlushError() error {
	if t.place != nil && t.place.full {
		return errManyUnread
	}
	return http.NewResponseController(t.ResponseWriter).Flush()
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
// after it has sent them. Over HTTP/2, every answer needs a place while its bytes are sent, even if
// it has no body. If no place is free, the method resets the stream, so that the answer holds no
// memory.
func (t *timedWriter) end() {
	if t.hijacked {
		return
	}
	_ = t.SetWriteDeadline(time.Now().Add(t.limit))
	if t.place == nil {
		return
	}
	if t.place.enter(); t.place.full {
		panic(http.ErrAbortHandler)
	}
	_ = t.FlushError() // fails only if the client has left
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
