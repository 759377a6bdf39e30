package face

import (
	"encoding/json"
	"net/http"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
)

// SSE writes server-sent events. A client that takes nothing for the limit has its connection fail.
type SSE struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	limit time.Duration
}

// NewSSE begins the answer.
func NewSSE(w http.ResponseWriter, limit time.Duration) *SSE {
	w.Header().Set("Content-Type", apiv1.EventStream)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // proxies pass events on as they come
	return &SSE{w: w, rc: http.NewResponseController(w), limit: limit}
}

// Text writes text as it is, such as a comment, which ends with an empty line.
func (s *SSE) Text(text string) error {
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.limit)) // a connection without deadlines is a test's
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.rc.Flush()
}

// Send writes an event. JSON has no line breaks of its own, and no id or name here has any.
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
