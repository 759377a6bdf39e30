package mcphttp

import (
	"net/http"
	"sync"
	"time"
)

// comment is a comment in a stream of server-sent events. Clients skip it.
const comment = ": keepalive\n\n"

// aliveWriter writes a comment into a stream of events after each interval without output. Without
// these comments, clients and proxies could conclude that the connection of a long call is dead.
type aliveWriter struct {
	http.ResponseWriter

	mu     sync.Mutex
	header http.Header // header that the handler sets; sent with the first byte
	begun  bool
	timer  *time.Timer // fires after an interval without output
	every  time.Duration
	ended  bool
}

// alive() returns the writer for a handler, and a function that the caller must call when the
// handler has returned. If a comment cannot be written because the client has left, the writer
// calls gone().
func alive(w http.ResponseWriter, every time.Duration, gone func()) (*aliveWriter, func()) {
	a := &aliveWriter{ResponseWriter: w, header: http.Header{}, every: every}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = time.AfterFunc(every, func() {
		if a.say() != nil {
			gone()
		}
	})
	return a, a.end
}

// say writes a comment. If the handler has written nothing yet, say() first begins a stream of
// events. The handler's own answer will be a stream too, because only errors have another form, and
// the handler returns errors immediately.
func (a *aliveWriter) say() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return nil
	}
	if !a.begun { // use a copy, because the handler may be writing to its own header
		a.ResponseWriter.Header().Set("Content-Type", "text/event-stream")
		a.ResponseWriter.Header().Set("Cache-Control", "no-cache, no-transform")
		a.beginLocked(http.StatusOK)
	}
	if !isEvents(a.ResponseWriter.Header()) {
		return nil
	}
	if _, err := a.ResponseWriter.Write([]byte(comment)); err != nil {
		return err
	}
	if err := http.NewResponseController(a.ResponseWriter).Flush(); err != nil {
		return err
	}
	a.timer.Reset(a.every)
	return nil
}

func isEvents(h http.Header) bool { return h.Get("Content-Type") == "text/event-stream" }

func (a *aliveWriter) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	a.timer.Stop()
	if !a.begun {
		a.copyHeaderLocked() // the server sends this header
	}
}

func (a *aliveWriter) copyHeaderLocked() {
	for name, values := range a.header {
		a.ResponseWriter.Header()[name] = values
	}
}

// beginLocked sends the header of the answer.
func (a *aliveWriter) beginLocked(status int) {
	a.begun = true
	a.ResponseWriter.WriteHeader(status)
}

// Header implements http.ResponseWriter.
func (a *aliveWriter) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *aliveWriter) WriteHeader(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeaderLocked(status)
}

func (a *aliveWriter) writeHeaderLocked(status int) {
	if a.begun {
		return
	}
	a.copyHeaderLocked()
	a.beginLocked(status)
}

// Write implements http.ResponseWriter.
func (a *aliveWriter) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeaderLocked(http.StatusOK)
	a.timer.Reset(a.every)
	return a.ResponseWriter.Write(p)
}

// FlushError is called by http.ResponseController.
func (a *aliveWriter) FlushError() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeaderLocked(http.StatusOK)
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// Unwrap lets http.ResponseController reach the connection.
func (a *aliveWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }
