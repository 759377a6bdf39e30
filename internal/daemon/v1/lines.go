package v1

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
)

// lines sends an answer as lines of JSON, one for each message. Before the first message, an error
// can still determine the HTTP status. Methods may be called concurrently.
type lines struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	stall time.Duration // maximum time for which the client may receive nothing

	mu    sync.Mutex
	out   *json.Encoder
	begun bool
	idle  *time.Timer // fires after an interval without a message; nil before keepAlive
	every time.Duration
}

func newLines(w http.ResponseWriter, stall time.Duration) *lines {
	l := &lines{w: w, rc: http.NewResponseController(w), stall: stall, out: json.NewEncoder(w)}
	l.out.SetEscapeHTML(false)
	return l
}

// send writes a message.
func (l *lines) send(message any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sendLocked(message)
}

func (l *lines) sendLocked(message any) error {
	defer l.beginLocked()()
	if l.idle != nil {
		l.idle.Reset(l.every)
	}
	if err := l.out.Encode(message); err != nil {
		return err
	}
	return l.rc.Flush()
}

// beginLocked prepares to write. The caller calls the returned function after the write. A client
// that reads nothing must not hold its place in the request gate for longer than l.stall. The
// deadline is cleared after the write, because otherwise it would end an idle HTTP/2 stream.
func (l *lines) beginLocked() (end func()) {
	if !l.begun {
		l.w.Header().Set("Content-Type", apiv1.NDJSON)
		l.begun = true
	}
	_ = l.rc.SetWriteDeadline(time.Now().Add(l.stall))
	return func() { _ = l.rc.SetWriteDeadline(time.Time{}) }
}

// last writes the last message. Package http sends the end of the message after the handler has returned
// and released its places. So a client that has read the message can use these places at once.
func (l *lines) last(message any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	out.SetEscapeHTML(false)
	if out.Encode(message) != nil { // messages are plain structs
		return
	}
	defer l.beginLocked()()
	const end = "}\n"
	for _, part := range [][]byte{bytes.TrimSuffix(text.Bytes(), []byte(end)), []byte(end)} {
		_, _ = l.w.Write(part) // fails only if the client has left
	}
}

// keepAlive sends the given message after every interval in which nothing else was sent. It starts
// after the first message and runs until the returned function is called. If keepAlive cannot send
// because the client has left, it calls gone().
func (l *lines) keepAlive(message any, every time.Duration, gone func()) (stop func()) {
	l.mu.Lock()
	l.idle, l.every = time.NewTimer(every), every
	l.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-l.idle.C:
			}
			l.mu.Lock()
			var err error
			if l.begun {
				err = l.sendLocked(message)
			} else {
				l.idle.Reset(every)
			}
			l.mu.Unlock()
			if err != nil {
				gone()
				return
			}
		}
	})
	return func() {
		cancel()
		done.Wait()
		l.idle.Stop()
	}
}

// hasBegun reports whether a message was sent.
func (l *lines) hasBegun() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.begun
}
