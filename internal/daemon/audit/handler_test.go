package audit

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHandler(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := l.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		From(r.Context()).Who = "token:x"
		if r.URL.Path == "/abort" {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusTeapot)
	}), func(_ Entry, err error) {
		if err != nil {
			t.Error(err)
		}
	})
	ask := func(path, id string) (e Entry, answered string) {
		t.Helper()
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set(RequestIDHeader, id)
		w := httptest.NewRecorder()
		func() {
			defer func() { _ = recover() }()
			h.ServeHTTP(w, r)
		}()
		return last(t, l.path), w.Header().Get(RequestIDHeader)
	}
	if e, id := ask("/a?secret", "abc-1"); e.RequestID != "abc-1" || id != "abc-1" || e.Path != "/a" ||
		e.Status != http.StatusTeapot || e.Who != "token:x" {
		t.Errorf("%+v, %s", e, id)
	}
	for _, bad := range []string{"", "a b", "a\"b", strings.Repeat("x", 129)} {
		if e, id := ask("/a", bad); e.RequestID == bad || id != e.RequestID || len(id) != 24 {
			t.Errorf("id %q: %+v, %q", bad, e, id)
		}
	}
	if e, _ := ask("/abort", ""); e.Path != "/abort" {
		t.Errorf("an aborted answer leaves no line: %+v", e)
	}
}

func last(t *testing.T, path string) (e Entry) {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(p)), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &e); err != nil {
		t.Fatal(err)
	}
	return e
}
