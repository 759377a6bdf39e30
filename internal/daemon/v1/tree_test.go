package v1_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

func TestFilesOfSandboxes(t *testing.T) {
	cl, url, id := forked(t)
	ctx, dir := t.Context(), t.TempDir() // the faked guest uses the host's file system
	if f, err := cl.MakeDir(ctx, id, dir+"/a/b"); err != nil || f.Type != "directory" || f.Path != dir+"/a/b" {
		t.Errorf("make a directory: %+v, %v", f, err)
	}
	if _, err := cl.MakeDir(ctx, id, dir+"/a/b"); !client.IsStatus(err, http.StatusConflict) {
		t.Errorf("make it again: %v", err)
	}
	odd := dir + "/a/\xff" // JSON cannot contain this name, because it is not UTF-8
	if err := os.WriteFile(odd, []byte("12345"), 0o640); err != nil {
		t.Fatal(err)
	}
	for depth, want := range map[int][]string{1: {"a"}, 2: {"a", "b", "\uFFFD"}} {
		list, err := cl.ListFiles(ctx, id, dir, depth)
		var names []string
		for _, f := range list {
			names = append(names, f.Name)
		}
		if err != nil || !slices.Equal(names, want) {
			t.Errorf("depth %d: %q, %v; want %q", depth, names, err, want)
		}
	}
	if err := os.Rename(odd, dir+"/a/f"); err != nil {
		t.Fatal(err)
	}
	if f, err := cl.MoveFile(ctx, id, dir+"/a/f", dir+"/new/g"); err != nil || f.Size != 5 || f.Mode != 0o640 ||
		f.Name != "g" {
		t.Errorf("move: %+v, %v", f, err)
	}
	if f, err := cl.StatFile(ctx, id, dir+"/new/g"); err != nil || f.Type != "file" || f.Permissions != "-rw-r-----" ||
		f.Modified.IsZero() {
		t.Errorf("stat: %+v, %v", f, err)
	}
	for range 2 {
		if err := cl.RemoveFile(ctx, id, dir+"/a"); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if _, err := cl.StatFile(ctx, id, dir+"/a"); !client.IsNotFound(err) {
		t.Errorf("stat of what is gone: %v", err)
	}
	box := url + "/v1/sandboxes/" + id
	for _, c := range []struct{ method, path, body, field string }{
		{"GET", "/files/list?path=/&depth=0", "", "depth"}, {"GET", "/files/list?path=/&depth=65", "", "depth"},
		{"GET", "/files/stat", "", "path"},
		{"POST", "/files/mkdir", `{}`, "path"}, {"POST", "/files/mkdir", `{"path":"\u0000"}`, "path"},
		{"POST", "/files/move", `{"from":"/a"}`, "to"},
		{"GET", "/archive", "", "path"}, {"GET", "/files/watch?path=/&recursive=x", "", "recursive"},
	} {
		if status, answer := request(t, c.method, box+c.path, c.body); status != http.StatusBadRequest ||
			answer["field"] != c.field {
			t.Errorf("%s %s: %d %v", c.method, c.path, status, answer)
		}
	}
}

func TestArchives(t *testing.T) {
	cl, _, id := forked(t)
	ctx, dir := t.Context(), t.TempDir()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, h := range []tar.Header{
		{Name: "sub/", Typeflag: tar.TypeDir, Mode: 0o750}, {Name: "sub/f", Typeflag: tar.TypeReg, Mode: 0o600, Size: 3},
		{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			io.WriteString(w, "one")
		}
	}
	w.Close()
	sent := archive.Bytes()
	if err := cl.WriteTree(ctx, id, dir+"/new", bytes.NewReader(sent)); err != nil {
		t.Fatal(err)
	}
	if p, err := os.ReadFile(dir + "/new/sub/f"); err != nil || string(p) != "one" {
		t.Errorf("%q, %v", p, err)
	}
	back, err := cl.ReadTree(ctx, id, dir+"/new")
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	var names []string
	for in := tar.NewReader(back); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if !slices.Equal(names, []string{"link", "sub/", "sub/f"}) {
		t.Errorf("came back: %q", names)
	}
	if _, err := cl.ReadTree(ctx, id, dir+"/none"); !client.IsNotFound(err) {
		t.Errorf("read what is not there: %v", err)
	}
	var special bytes.Buffer
	w = tar.NewWriter(&special)
	for _, h := range []tar.Header{{Name: "console", Typeflag: tar.TypeChar, Devmajor: 5, Devminor: 1},
		{Name: "after", Typeflag: tar.TypeDir, Mode: 0o755}} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), cl.WriteTree(ctx, id, dir+"/y", &special)); !client.IsStatus(err,
		http.StatusBadRequest) || !strings.Contains(err.Error(), "console") {
		t.Errorf("a device: %v", err)
	}
	if _, err := os.Stat(dir + "/y/after"); err != nil {
		t.Errorf("what follows a device: %v", err)
	}
	if err := cl.WriteFile(ctx, id, "/sys/x", strings.NewReader("x")); !client.IsStatus(err, http.StatusForbidden) ||
		!strings.Contains(err.Error(), "/sys/x") {
		t.Errorf("a file in /sys: %v", err)
	}
	for name, body := range map[string]io.Reader{"no archive": strings.NewReader(strings.Repeat("x", 1024)),
		"half of one": bytes.NewReader(sent[:700])} {
		if err := cl.WriteTree(ctx, id, dir+"/x", body); !client.IsStatus(err, http.StatusBadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWatch(t *testing.T) {
	cl, _, id := forked(t)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	var first, last client.FileChange
	err := cl.WatchFiles(t.Context(), id, dir, true, func(c client.FileChange) error {
		if first.Type == "" {
			first = c
			return os.WriteFile(filepath.Join(dir, "sub", "f"), nil, 0o600)
		}
		last = c
		return errEnough
	})
	if !errors.Is(err, errEnough) || first.Type != "begun" || last.Type != "create" || last.Name != "sub/f" {
		t.Errorf("%+v, %+v, %v", first, last, err)
	}
	err = cl.WatchFiles(t.Context(), id, dir+"/none", false, func(client.FileChange) error { return nil })
	if !client.IsNotFound(err) {
		t.Errorf("watch what is not there: %v", err)
	}
	// When a sandbox is deleted, a client that watches files of the sandbox gets the reason.
	err = cl.WatchFiles(t.Context(), id, dir, false, func(c client.FileChange) error {
		return cl.Kill(context.Background(), id)
	})
	if e := (*client.Error)(nil); !errors.As(err, &e) || e.Code != "sandbox_cut_off" {
		t.Errorf("the watch of a deleted sandbox: %v", err)
	}
}
