package mcphttp

import (
	"net/http"
	"sync"
	"time"
)

// comment is a line that clients of server-sent events skip.
const comment = ": keepalive\n\n"

// aliveWriter writes a comment into a stream of events whenever it was silent for a while, so that
// neither clients nor proxies consider the connection of a long call dead.
type aliveWriter struct {
	http.ResponseWriter

	mu     sync.Mutex
	header http.Header // set by the handler; sent with its first byte
	begun  bool
	timer  *time.Timer // fires after silence
	every  time.Duration
	ended  bool
}

// alive returns the writer for a handler, and a function to call after the handler has returned.
// gone is called if a comment cannot be written because the client has left.
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

// say writes a comment. A handler that was silent for that long will answer with a stream of
// events, because errors of the transport are answered at once.
func (a *aliveWriter) say() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return nil
	}
	if !a.begun { // the handler may be writing to its own header
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
		a.copyHeaderLocked() // the server sends it
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
