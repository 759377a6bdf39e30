package face

import (
	"encoding/json"
	"net/http"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
)

// SSE writes server-sent events. A write fails if the client receives nothing for the time limit.
type SSE struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	limit time.Duration
}

// NewSSE sends the headers of the answer.
func NewSSE(w http.ResponseWriter, limit time.Duration) *SSE {
	w.Header().Set("Content-Type", apiv1.EventStream)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // tells proxies not to buffer events
	return &SSE{w: w, rc: http.NewResponseController(w), limit: limit}
}

// Text writes raw text that ends with an empty line, such as a comment.
func (s *SSE) Text(text string) error {
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.limit)) // connections of some tests have no deadlines
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.rc.Flush()
}

// Send writes an event. The parameters id and name, and the JSON of v, must not contain line
// breaks.
func (s *SSE) Send(id, name string, v any) error {
	p, err := json.Marshal(v)
	if err != nil {
		return err
	}
	line := ""
	if id != "" {
		line = "id: " + id + "\n"
	}
	return s.Text(line + "event: " + name + "\ndata: " + string(p) + "\n\n")
}
