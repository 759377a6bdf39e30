package envd

import (
	"archive/tar"
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/guest/apply"
	"github.com/forkd/forkd/internal/proto/diffproto"
)

// POST /apply answers with the number of changes, or with the reason why nothing was applied.
func TestApply(t *testing.T) {
	archive := func(onto string) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range []*tar.Header{
			{Typeflag: tar.TypeReg, Name: "a", Mode: 0o644, Uid: os.Getuid(), Gid: os.Getgid(), Format: tar.FormatPAX,
				PAXRecords: map[string]string{diffproto.RecordOnto: onto}},
			{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{diffproto.RecordEnd: "1"}},
		} {
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	for name, c := range map[string]struct {
		dir    string
		body   []byte
		status int
		want   string
		made   bool
	}{
		"a change":                {t.TempDir(), archive("absent"), http.StatusOK, `{"files":1}`, true},
		"a file that has changed": {t.TempDir(), archive("1 33188 0 0 0 0 0"), http.StatusOK, `"changed":["/a"]`, false},
		"an archive without an end": {t.TempDir(), archive("absent")[:1536], http.StatusInternalServerError, "cut off",
			false},
		"an agent without a tree": {"", archive("absent"), http.StatusNotFound, "", false},
	} {
		s := New(Config{Tree: &apply.Tree{Dir: c.dir}})
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/apply", bytes.NewReader(c.body)))
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		if _, err := os.Stat(filepath.Join(c.dir, "a")); c.dir != "" && (err == nil) != c.made {
			t.Errorf("%s: %v", name, err)
		}
	}
}
