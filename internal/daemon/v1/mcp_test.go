package v1

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
)

// Brackets and commas count only outside of strings.
func TestValuesOfMessages(t *testing.T) {
	deep := func(n int) string { return strings.Repeat(`{"a":[`, n/2) + strings.Repeat("]}", n/2) }
	for message, want := range map[string]int{
		``: 0, `1`: 0, `{"a":[{},[1]]}`: 4, `{"a[{":"[[{\"[[","b":"\\\\"}`: 1, `{"a":"\\[`: 1, `]]]`: 0, `"\`: 0,
		deep(maxNesting): maxNesting, `[` + strings.Repeat(`[],`, maxNested-2) + `{}]`: maxNested,
		deep(maxNesting + 2): -1, `[` + strings.Repeat(`[],`, maxNested-1) + `{}]`: -1,
		`{"a":"\\",` + deep(maxNesting + 2)[1:]: -1, strings.Repeat("[", 4<<20): -1,
		`["` + strings.Repeat(",", maxCommas+1) + `"]`: 1, `[0` + strings.Repeat(",0", maxCommas) + `]`: 1,
		`[0` + strings.Repeat(",0", maxCommas+1) + `]`: -1,
	} {
		n, err := checkValues([]byte(message))
		if (err != nil) != (want < 0) || err == nil && n != want {
			t.Errorf("%.60q, %d bytes: %d, %v; want %d", message, len(message), n, err, want)
		}
	}
}

// If there is no memory for the answer to a message, the client receives an error or an incomplete
// stream, but not the answer.
func TestUnreadAnswersOfToolsAreCounted(t *testing.T) {
	f := face.New(face.Config{Limits: face.Limits{Memory: 16 << 20}}) // 12 MiB for each client
	answer := func(parts ...int) (w *httptest.ResponseRecorder, err error, aborted bool) {
		r := httptest.NewRequest(http.MethodPost, "/mcp", nil)
		r, done := f.Memory.Sharing(r.WithContext(auth.With(r.Context(), auth.Principal{Who: "token:a"})))
		defer done()
		if err := face.ShareOf(r).Take(toolAnswer); err != nil {
			t.Fatal(err)
		}
		w = httptest.NewRecorder()
		p := &pacedWriter{ResponseWriter: w, rc: http.NewResponseController(w), share: face.ShareOf(r), taken: toolAnswer}
		p.WriteHeader(http.StatusAccepted)
		for _, size := range parts {
			_, _ = p.Write(make([]byte, size))
			_ = p.FlushError()
		}
		defer func() {
			cause, _ := recover().(error)
			aborted = errors.Is(cause, http.ErrAbortHandler)
		}()
		return w, p.end(), false
	}
	if w, err, aborted := answer(); err != nil || aborted || w.Code != http.StatusAccepted {
		t.Errorf("an empty answer: %d, %v, %v", w.Code, err, aborted)
	}
	if w, err, aborted := answer(1, toolAnswer/2, toolAnswer/2); err != nil || aborted ||
		w.Body.Len() != toolAnswer+1 {
		t.Errorf("parts of 3 MiB: %d bytes, %v, %v", w.Body.Len(), err, aborted)
	}
	if w, err, _ := answer(toolAnswer); !errors.Is(err, face.ErrNoMemory) || w.Body.Len() > 0 || w.Flushed {
		t.Errorf("a part of 6 MiB, of which there are three copies: %d bytes, %v", w.Body.Len(), err)
	}
	if w, _, aborted := answer(1, toolAnswer); !aborted || w.Body.Len() != 1 {
		t.Errorf("a part of 6 MiB after another one: %d bytes, %v", w.Body.Len(), aborted)
	}
}
