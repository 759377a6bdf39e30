package face

import (
	"encoding/json"
	"net/http"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
)

// SSE writes server-sent events. A write fails if the client receives nothing for the time limit.
type SSE struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	limit   time.Duration
	pending []byte // text that Flush will send
}

// NewSSE sends the headers of the answer.
func NewSSE(w http.ResponseWriter, limit time.Duration) *SSE {
	w.Header().Set("Content-Type", apiv1.EventStream)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // tells proxies not to buffer events
	return &SSE{w: w, rc: http.NewResponseController(w), limit: limit}
}

// AddText adds raw text that ends with an empty line, such as a comment.
func (s *SSE) AddText(text string) { s.pending = append(s.pending, text...) }

// Add adds an event; see EventText.
func (s *SSE) Add(id, name string, v any) error {
	text, err := EventText(id, name, v)
	s.AddText(text)
	return err
}

// EventText returns the text of an event, for SSE.AddText. The parameters id and name, and the JSON
// of v, must not contain line breaks.
func EventText(id, name string, v any) (string, error) {
	p, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	if id != "" {
		id = "id: " + id + "\n"
	}
	return id + "event: " + name + "\ndata: " + string(p) + "\n\n", nil
}

// Pending returns the number of bytes that Flush will send.
func (s *SSE) Pending() int { return len(s.pending) }

// Flush sends all events and texts that were added, in one write. If there are none, it does nothing.
func (s *SSE) Flush() error {
	p := s.pending
	if len(p) == 0 {
		return nil
	}
	s.pending = nil                                    // an idle stream needs no buffer
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.limit)) // connections of some tests have no deadlines
	if _, err := s.w.Write(p); err != nil {
		return err
	}
	return s.rc.Flush()
}

// Text sends raw text immediately: it calls AddText and Flush.
func (s *SSE) Text(text string) error {
	s.AddText(text)
	return s.Flush()
}

// Send sends an event immediately: it calls Add and Flush.
func (s *SSE) Send(id, name string, v any) error {
	if err := s.Add(id, name, v); err != nil {
		return err
	}
	return s.Flush()
}
