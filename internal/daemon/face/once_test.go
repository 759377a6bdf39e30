package face

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/once"
)

// An answer that is kept counts against its client's memory when it is stored. If the request is
// repeated, the kept answer counts again, before it is read. A large answer to a request without a
// key counts too.
func TestKeptAnswersAreCounted(t *testing.T) {
	answers, err := once.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const size = 1 << 20
	f := New(Config{Answers: answers, Limits: Limits{Memory: 16 * size}})
	carriedOut := 0
	write := func(w http.ResponseWriter, r *http.Request) error {
		carriedOut++
		return WriteJSON(w, r, http.StatusCreated, strings.Repeat("x", size))
	}
	request := func(key string) (*http.Request, func()) {
		r := httptest.NewRequest(http.MethodPost, "/v1/forks", strings.NewReader(`{}`))
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		return f.Memory.Sharing(r.WithContext(auth.With(r.Context(), auth.Principal{Who: "token:a"})))
	}
	answer := func(h Handler, key string, held int) (*httptest.ResponseRecorder, error) {
		r, done := request(key)
		defer done()
		other, otherDone := request("")
		defer otherDone()
		if err := ShareOf(other).Take(held); err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		return w, h(w, r)
	}
	const all = 12 * size // bytes that one client may hold
	if w, err := answer(f.Once(write), "k", 0); err != nil || w.Body.Len() != size+3 {
		t.Fatalf("the first answer: %d bytes, %v", w.Body.Len(), err)
	}
	if w, err := answer(f.Once(write), "k", all-3*size); err != nil || w.Body.Len() != size+3 ||
		w.Header().Get("Idempotency-Replayed") != "true" || carriedOut != 1 {
		t.Errorf("repeated: %d bytes, carried out %d times, %v", w.Body.Len(), carriedOut, err)
	}
	if w, err := answer(f.Once(write), "k", all-size); !errors.Is(err, ErrNoMemory) || w.Body.Len() > 0 ||
		carriedOut != 1 {
		t.Errorf("repeated without memory: %d bytes, carried out %d times, %v", w.Body.Len(), carriedOut, err)
	}
	if _, err := answer(write, "", all-size/2); !errors.Is(err, ErrNoMemory) || !errors.Is(err, once.ErrUnanswered) {
		t.Errorf("without a key and memory: %v", err)
	}
	if _, err := answer(f.Once(write), "l", all-2*size); !errors.Is(err, ErrNoMemory) || carriedOut != 3 {
		t.Errorf("the first answer without memory: %v, carried out %d times", err, carriedOut)
	}
	if _, err := answer(f.Once(write), "l", 0); !errors.Is(err, once.ErrUnknown) || carriedOut != 3 {
		t.Errorf("repeated after that: %v, carried out %d times", err, carriedOut)
	}
	if n, _ := f.Memory.bytes.Count(); n != 0 {
		t.Errorf("%d bytes are held in the end", n)
	}
	if w, err := answer(write, "", 0); err != nil || w.Result().ContentLength != size+3 {
		t.Errorf("without a key: %v", err)
	} else if _, err := io.Copy(io.Discard, w.Body); err != nil {
		t.Error(err)
	}
}

// If a request asks only for the answer to an earlier request, it is never carried out.
func TestRepeatOnly(t *testing.T) {
	answers, err := once.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f := New(Config{Answers: answers})
	carriedOut := 0
	h := f.Once(func(w http.ResponseWriter, r *http.Request) error {
		carriedOut++
		return WriteJSON(w, r, http.StatusCreated, "made")
	})
	send := func(header ...string) (int, error) {
		r := httptest.NewRequest(http.MethodPost, "/v1/forks", strings.NewReader(`{}`))
		for _, name := range header {
			r.Header.Set(name, "true")
		}
		r, done := f.Memory.Sharing(r.WithContext(auth.With(r.Context(), auth.Principal{Who: "token:a"})))
		defer done()
		w := httptest.NewRecorder()
		err := h(w, r)
		return w.Code, err
	}
	if _, err := send(RepeatOnlyHeader); err == nil || carriedOut != 0 {
		t.Errorf("without a key: %v, carried out %d times", err, carriedOut)
	}
	if status, err := send(RepeatOnlyHeader, onceHeader); status != http.StatusNoContent || err != nil || carriedOut != 0 {
		t.Errorf("without an earlier request: %d, %v, carried out %d times", status, err, carriedOut)
	}
	if status, err := send(onceHeader); status != http.StatusCreated || err != nil || carriedOut != 1 {
		t.Errorf("the request itself: %d, %v, carried out %d times", status, err, carriedOut)
	}
	if status, err := send(RepeatOnlyHeader, onceHeader); status != http.StatusCreated || err != nil || carriedOut != 1 {
		t.Errorf("after the request: %d, %v, carried out %d times", status, err, carriedOut)
	}
}
