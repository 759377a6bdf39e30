package face

import (
	"bytes"
	"crypto/sha256"
	"io"
	"net/http"
	"regexp"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/once"
	"github.com/forkd/forkd/internal/host/invalid"
)

// onceHeader marks a request that must be carried out only once, as in the IETF draft
// draft-ietf-httpapi-idempotency-key-header.
const onceHeader = "Idempotency-Key"

var onceKey = regexp.MustCompile(`^[!-~]{1,255}$`)

// Once makes a handler that creates something honour the Idempotency-Key: a request with the same
// key, body, path and client gets the first answer again. Only successes are remembered.
func (f *Face) Once(h Handler) Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if len(r.Header.Values(onceHeader)) == 0 {
			return h(w, r)
		}
		name := r.Header.Get(onceHeader)
		if !onceKey.MatchString(name) {
			return invalid.Errorf(onceHeader, "%.300q: want 1 to 255 visible ASCII characters", name)
		}
		body, err := ReadBody(w, r, MaxBody)
		if err != nil {
			return err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		key := once.KeyOf(auth.From(r.Context()).Who, r.Method+" "+r.URL.EscapedPath()+"\n"+name)
		answer, again, err := f.Answers.Do(r.Context(), key, sha256.Sum256(body), func() (once.Answer, error) {
			held := &heldAnswer{header: http.Header{}, status: http.StatusOK}
			if err := h(held, r); err != nil {
				return once.Answer{}, err
			}
			return once.Answer{Status: held.status, Body: held.body.Bytes()}, nil
		})
		if err != nil {
			return err
		}
		if again {
			w.Header().Set("Idempotency-Replayed", "true")
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(answer.Status)
		_, _ = w.Write(append(bytes.TrimRight(answer.Body, "\n"), '\n')) // the client has gone if this fails
		return nil
	}
}

// heldAnswer keeps an answer in memory.
type heldAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (h *heldAnswer) Header() http.Header         { return h.header }
func (h *heldAnswer) WriteHeader(status int)      { h.status = status }
func (h *heldAnswer) Write(p []byte) (int, error) { return h.body.Write(p) }
