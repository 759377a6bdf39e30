package docker_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pack returns an archive of files with the given content. Names that end with a slash are
// directories.
func pack(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	out := tar.NewWriter(&b)
	for name, text := range files {
		h := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}
		if err := out.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(out, text)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// unpack returns the files of an archive.
func unpack(t *testing.T, p string) map[string]string {
	t.Helper()
	files, in := map[string]string{}, tar.NewReader(strings.NewReader(p))
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(text) + h.Linkname
	}
}

func TestArchive(t *testing.T) {
	r := start(t)
	r.create("?name=box", "") // files can be copied before the start
	dir := t.TempDir()
	at := func(path string) string { return "/containers/box/archive?path=" + url.QueryEscape(path) }
	r.call("PUT", at(dir), string(pack(t, map[string]string{"src/a": "one", "src/sub/b": "two"})), 200, nil)
	if p, err := os.ReadFile(filepath.Join(dir, "src/sub/b")); err != nil || string(p) != "two" {
		t.Errorf("%q %v", p, err)
	}
	if err := os.Symlink("a", filepath.Join(dir, "src/link")); err != nil {
		t.Fatal(err)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write(pack(t, map[string]string{"z": "zip"}))
	z.Close()
	r.call("PUT", at(dir), zipped.String(), 200, nil)
	if p, err := os.ReadFile(filepath.Join(dir, "z")); err != nil || string(p) != "zip" {
		t.Errorf("gzip: %q %v", p, err)
	}
	resp, tree := r.send("GET", at(dir+"/src"), "")
	files := unpack(t, tree)
	if resp.StatusCode != 200 || len(files) != 5 || files["src/a"] != "one" || files["src/sub/b"] != "two" ||
		files["src/link"] != "a" {
		t.Errorf("directory: %s %v", resp.Status, files)
	}
	if _, tree := r.send("GET", at(dir+"/src/sub/."), ""); unpack(t, tree)["./b"] != "two" {
		t.Errorf("content of a directory: %v", unpack(t, tree))
	}
	for _, path := range []string{dir + "/src/a", dir + "/src/link"} {
		if _, file := r.send("GET", at(path), ""); unpack(t, file)[filepath.Base(path)] != "one" {
			t.Errorf("%s: %v", path, unpack(t, file))
		}
	}
	req, _ := http.NewRequestWithContext(t.Context(), "HEAD", "http://docker/v1.44"+at(dir+"/src"), nil)
	resp, err := r.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	var stat struct {
		Name string
		Mode os.FileMode
	}
	text, _ := base64.StdEncoding.DecodeString(resp.Header.Get("X-Docker-Container-Path-Stat"))
	if json.Unmarshal(text, &stat) != nil || stat.Name != "src" || !stat.Mode.IsDir() {
		t.Errorf("stat: %s %q", resp.Status, text)
	}
	for _, c := range []struct {
		method, path, body string
		want               int
	}{
		{"GET", at(dir + "/none"), "", 404},
		{"PUT", at(dir + "/none"), "", 404},
		{"PUT", at(dir + "/z"), "", 400},
		{"GET", "/containers/box/archive", "", 400},
		{"PUT", at(dir) + "&copyUIDGID=1", "", 400},
		{"PUT", at(dir), "BZh91AY", 400},
		{"PUT", at(dir), strings.Repeat("not a tar archive ", 100), 400},
		{"PUT", at(dir), string(pack(t, map[string]string{"../outside": "x"})), 400},
		{"GET", "/containers/none/archive?path=/", "", 404},
	} {
		r.call(c.method, c.path, c.body, c.want, nil)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(dir), "outside")); err == nil {
		t.Error("an archive wrote outside of its directory")
	}
}

func TestStatsAndTop(t *testing.T) {
	r := start(t)
	id := r.running("?name=box")
	var s struct {
		ID     string                 `json:"id"`
		Memory struct{ Limit uint64 } `json:"memory_stats"`
		CPU    struct {
			System uint64 `json:"system_cpu_usage"`
		} `json:"cpu_stats"`
	}
	if r.call("GET", "/containers/box/stats?stream=0&one-shot=1", "", 200, &s); s.ID != id || s.Memory.Limit == 0 ||
		s.CPU.System == 0 {
		t.Errorf("%+v", s)
	}
	var top struct {
		Titles    []string
		Processes [][]string
	}
	if r.call("GET", "/containers/box/top?ps_args=-eo%20pid,args", "", 200, &top); len(top.Titles) != 2 {
		t.Errorf("%+v", top)
	}
	found := false
	for _, p := range top.Processes {
		found = found || p[1] == "sleep 600"
	}
	if !found {
		t.Errorf("the main process is not among %d processes", len(top.Processes))
	}
	if _, err := exec.LookPath("ps"); err == nil {
		r.call("GET", "/containers/box/top?ps_args=--no-such-flag", "", 400, nil)
	}
	r.call("POST", "/containers/box/kill", "", 204, nil)
	r.call("GET", "/containers/box/top", "", 409, nil)
}
