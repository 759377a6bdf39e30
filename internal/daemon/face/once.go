package face

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
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

// RepeatOnlyHeader marks a request with an Idempotency-Key that must not be carried out. It gets the
// answer to an earlier request with the same key, or the status 204 if there was none. With it, a
// router finds out which node has carried out a request.
const RepeatOnlyHeader = "Forkd-Repeat-Only"

var onceKey = regexp.MustCompile(`^[!-~]{1,255}$`)

// Once returns a handler that obeys the header Idempotency-Key. If a request has the same key,
// body, path and client as an earlier request, it gets the first answer again, and h is not called.
// Only successful answers are kept.
func (f *Face) Once(h Handler) Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		only := r.Header.Get(RepeatOnlyHeader) != ""
		if len(r.Header.Values(onceHeader)) == 0 {
			if only {
				return invalid.Errorf(RepeatOnlyHeader, "needs the header %s", onceHeader)
			}
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
		share := ShareOf(r)
		take := func(size int64) error { return share.Take(copiesOfKept * int(size)) }
		if only {
			earlier, err := f.Answers.Find(r.Context(), key, sha256.Sum256(body), take)
			switch {
			case err != nil:
				return err
			case earlier == nil:
				w.WriteHeader(http.StatusNoContent)
			default:
				writeAnswer(w, *earlier, true)
			}
			return nil
		}
		answer, again, err := f.Answers.Do(r.Context(), key, sha256.Sum256(body), take, func() (once.Answer, error) {
			held := &heldAnswer{header: http.Header{}, status: http.StatusOK, share: share}
			if err := cmp.Or(h(held, r), held.short); err != nil {
				return once.Answer{}, err
			}
			return once.Answer{Status: held.status, Body: bytes.TrimRight(held.body.Bytes(), "\n")}, nil
		})
		if err != nil {
			return err
		}
		writeAnswer(w, answer, again)
		return nil
	}
}

// writeAnswer answers with a kept answer. If again is true, the answer was kept for an earlier
// request.
func writeAnswer(w http.ResponseWriter, a once.Answer, again bool) {
	if again {
		w.Header().Set("Idempotency-Replayed", "true")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body) // fails only if the client has left
	_, _ = w.Write([]byte{'\n'})
}

// copiesOfKept is the number of copies of a kept answer in memory while it is sent again: its
// record, and its body.
const copiesOfKept = 2

// heldAnswer keeps an answer in memory and counts it against a share.
type heldAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
	share  *Share
	short  error // error if the share is used up
}

func (h *heldAnswer) Header() http.Header    { return h.header }
func (h *heldAnswer) WriteHeader(status int) { h.status = status }

// Write implements http.ResponseWriter.
func (h *heldAnswer) Write(p []byte) (int, error) {
	if err := h.share.Keep(len(p)); err != nil {
		h.short = fmt.Errorf("%w: %w", once.ErrUnanswered, err)
		return 0, h.short
	}
	return h.body.Write(p)
}
