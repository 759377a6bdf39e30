package volfiles

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// volume is a directory that stands in for a mounted volume.
type volume struct {
	t    *testing.T
	dir  string
	root *os.Root
}

func newVolume(t *testing.T) *volume {
	t.Helper()
	v := &volume{t: t, dir: t.TempDir()}
	var err error
	if v.root, err = os.OpenRoot(v.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.root.Close() })
	return v
}

// call sends a request, and checks the status of the answer. It decodes an answer in JSON into out,
// unless out is nil, and returns the body.
func (v *volume) call(route, query, body string, want int, out any) string {
	v.t.Helper()
	method, path, _ := strings.Cut(route, " ")
	r, err := http.NewRequest(method, path+"?"+query, strings.NewReader(body))
	if err != nil {
		v.t.Fatal(err)
	}
	resp := answer(v.root, r)
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != want || resp.ContentLength != int64(len(p)) {
		v.t.Fatalf("%s %s: status %d with %d of %d bytes, %v; want %d: %s", route, query, resp.StatusCode, len(p),
			resp.ContentLength, err, want, p)
	}
	if out != nil {
		if err := json.Unmarshal(p, out); err != nil {
			v.t.Fatalf("%s %s: %v: %s", route, query, err, p)
		}
	}
	return string(p)
}

// names returns the paths of a list.
func names(list []stat) (paths string) {
	for _, s := range list {
		paths += s.Path + " "
	}
	return paths
}

func TestFilesOfAVolume(t *testing.T) {
	v := newVolume(t)
	var s stat
	v.call("PUT /file", "path=/a/x&mode=384", "one", 404, nil) // 384 is 0o600
	v.call("PUT /file", "path=/a/x&mode=384&force=true", "one", 201, &s)
	if s.Name != "x" || s.Path != "/a/x" || s.Type != "file" || s.Size != 3 || s.Mode != 0o600 || s.MTime.IsZero() {
		t.Errorf("written: %+v", s)
	}
	if got := v.call("GET /file", "path=a/x", "", 200, nil); got != "one" {
		t.Errorf("read: %q", got)
	}
	v.call("PUT /file", "path=/a/x", "other", 201, &s)
	if s.Size != 5 || s.Mode != 0o600 {
		t.Errorf("replaced: %+v", s)
	}
	v.call("POST /dir", "path=/b/c", "", 404, nil)
	v.call("POST /dir", "path=/b/c&force=true&mode=448", "", 201, &s)
	if s.Type != "directory" || s.Mode != 0o700 {
		t.Errorf("made: %+v", s)
	}
	v.call("POST /dir", "path=/b", "", 409, nil)
	v.call("POST /dir", "path=/b&force=true", "", 201, nil)
	if err := os.Symlink("a/x", filepath.Join(v.dir, "link")); err != nil {
		t.Fatal(err)
	}
	var list []stat
	if v.call("GET /dir", "path=/", "", 200, &list); names(list) != "/a /b /link " || list[2].Target != "a/x" ||
		list[2].Type != "symlink" {
		t.Errorf("list: %+v", list)
	}
	if v.call("GET /dir", "path=/&depth=2", "", 200, &list); names(list) != "/a /a/x /b /b/c /link " {
		t.Errorf("list with depth 2: %s", names(list))
	}
	if v.call("GET /dir", "path=/b/c", "", 200, &list); list == nil || len(list) != 0 {
		t.Errorf("list of an empty directory: %v", list)
	}
	v.call("PATCH /path", "path=/a/x", `{"mode":292}`, 200, &s)
	if v.call("GET /path", "path=/a/x", "", 200, &s); s.Mode != 0o444 || int(s.UID) != os.Getuid() {
		t.Errorf("changed: %+v", s)
	}
	v.call("DELETE /path", "path=/a", "", 204, nil)
	v.call("DELETE /path", "path=/a", "", 404, nil)
	for _, route := range []string{"GET /path", "GET /file", "GET /dir"} {
		v.call(route, "path=/a/x", "", 404, nil)
	}
	if left, err := os.ReadDir(v.dir); err != nil || len(left) != 2 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A request cannot leave the volume, and does not wait for a FIFO. An upload that fails leaves the
// former file.
func TestWrongRequests(t *testing.T) {
	v := newVolume(t)
	outside := filepath.Join(t.TempDir(), "secret")
	err := os.WriteFile(outside, []byte("secret"), 0o600)
	if err == nil {
		err = os.Symlink(outside, filepath.Join(v.dir, "out"))
	}
	if err == nil {
		err = unix.Mkfifo(filepath.Join(v.dir, "fifo"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	v.call("PUT /file", "path=x", "former", 201, nil)
	for _, c := range []struct {
		route, query, body string
		want               int
	}{
		{"GET /file", "path=/out", "", 400},
		{"GET /file", "path=../../" + url.QueryEscape(outside), "", 404}, // a path in the volume
		{"PATCH /path", "path=/out", `{"mode":511}`, 400},
		{"GET /file", "path=/fifo", "", 400},
		{"GET /file", "path=/", "", 400},
		{"GET /dir", "path=/x", "", 400},
		{"GET /dir", "path=/&depth=0", "", 400},
		{"GET /dir", "path=/&depth=65", "", 400},
		{"PUT /file", "path=/", "", 400},
		{"PUT /file", "path=/x/y", "", 400},
		{"PUT /file", "path=/y&mode=-1", "", 400},
		{"PUT /file", "path=/y&mode=4096", "", 400},
		{"PUT /file", "path=/y&force=perhaps", "", 400},
		{"GET /path", "path=" + strings.Repeat("a", 300), "", 400},
		{"GET /path", "path=a%00b", "", 400},
		{"PATCH /path", "path=/x", `{"size":1}`, 400},
		{"PATCH /path", "path=/x", `{"mode":4096}`, 400},
		{"DELETE /path", "path=/", "", 400},
		{"POST /file", "path=/x", "", 405},
	} {
		v.call(c.route, c.query, c.body, c.want, nil)
	}
	r, err := http.NewRequest("PUT", "/file?path=/x", io.MultiReader(strings.NewReader("half"), brokenReader{}))
	if err != nil {
		t.Fatal(err)
	}
	if resp := answer(v.root, r); resp.StatusCode != 500 {
		t.Errorf("an upload that breaks off: %s", resp.Status)
	}
	if got := v.call("GET /file", "path=/x", "", 200, nil); got != "former" {
		t.Errorf("after an upload that broke off: %q", got)
	}
	if left, err := os.ReadDir(v.dir); err != nil || len(left) != 3 {
		t.Errorf("left: %v, %v", left, err)
	}
	if p, err := os.ReadFile(outside); err != nil || string(p) != "secret" {
		t.Errorf("outside: %q, %v", p, err)
	}
}

// While a file arrives, it has no name in the volume. So nothing of it is left if the VM is killed.
func TestNoNameBeforeTheEnd(t *testing.T) {
	v := newVolume(t)
	v.call("PUT /file", "path=/d/x&force=true", "former", 201, nil)
	r, err := http.NewRequest("PUT", "/file?path=/d/x", io.MultiReader(strings.NewReader("new"), readerFunc(func() {
		if list, err := os.ReadDir(filepath.Join(v.dir, "d")); err != nil || len(list) != 1 {
			t.Errorf("while a file arrives: %v, %v", list, err)
		}
	})))
	if err != nil {
		t.Fatal(err)
	}
	if resp := answer(v.root, r); resp.StatusCode != 201 {
		t.Errorf("written: %s", resp.Status)
	}
	if got := v.call("GET /file", "path=/d/x", "", 200, nil); got != "new" {
		t.Errorf("afterwards: %q", got)
	}
	if list, err := os.ReadDir(filepath.Join(v.dir, "d")); err != nil || len(list) != 1 {
		t.Errorf("afterwards: %v, %v", list, err)
	}
}

// readerFunc is an empty reader that calls a function when it is read.
type readerFunc func()

func (f readerFunc) Read([]byte) (int, error) { f(); return 0, io.EOF }

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
