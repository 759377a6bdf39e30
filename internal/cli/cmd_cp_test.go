package cli

import (
	"archive/tar"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// servedFiles is a client of a daemon with one sandbox. The sandbox has the file /srv/result.txt,
// and the directory /srv/dir with the file a.
func servedFiles(t *testing.T) *client.Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/files/stat"):
			kind := "file"
			if strings.HasSuffix(r.URL.Query().Get("path"), "dir") {
				kind = "directory"
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"name":"x","path":"/x","type":"`+kind+`"}`)
		case strings.HasSuffix(r.URL.Path, "/archive"):
			archive := tar.NewWriter(w)
			_ = archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "a", Mode: 0o644, Size: 3})
			_, _ = io.WriteString(archive, "new")
			_ = archive.Close()
		default:
			_, _ = io.WriteString(w, "new")
		}
	}))
	t.Cleanup(server.Close)
	cl, err := client.New(server.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return cl
}

// If an earlier copy has copied a link from a sandbox, a later copy does not write through the
// link.
func TestCopiesOutFollowNoLinkAtTheirTarget(t *testing.T) {
	cl := servedFiles(t)
	for name, c := range map[string]struct {
		remote, local string
		tree          bool
		written       string // content that the copy has written; empty if the copy is refused
		linked        bool   // the path of the working directory contains a link
	}{
		"a link with the name of the file": {remote: "/srv/result.txt", local: "srv/"},
		"the same, without a /":            {remote: "/srv/result.txt", local: "srv"},
		"the link itself":                  {remote: "/srv/result.txt", local: "srv/result.txt"},
		"a link to what does not exist":    {remote: "/srv/missing", local: "srv/"},
		"a link to a directory":            {remote: "/srv/result.txt", local: "srv/dir"},
		"a tree at a link":                 {remote: "/srv/dir", local: "srv/", tree: true},
		"a tree into a link":               {remote: "/srv/dir", local: "srv/dir", tree: true},
		"a file below a link":              {remote: "/srv/own", local: "srv/dir/own"},
		"a file below a link's child":      {remote: "/srv/own", local: "srv/dir/../dir/sub/"},
		"a tree below a link":              {remote: "/srv/dir", local: "./srv//dir/new", tree: true},
		"a file below a link, by its path": {remote: "/srv/own", local: "$PWD/srv/dir/own"},
		"a file below another directory":   {remote: "/srv/own", local: "$OTHER/dir/own"},
		"a file in the linked working directory": {remote: "/srv/own", local: "$OTHER/work/srv/new", written: "srv/new",
			linked: true},
		"a directory behind a link": {remote: "/srv/dir", local: "srv/dir/", tree: true,
			written: "home/dir/a"},
		"a file behind a link":     {remote: "/srv/result.txt", local: "srv/dir/", written: "home/result.txt"},
		"a file that is there":     {remote: "/srv/own", local: "srv/", written: "srv/own"},
		"a file under a new name":  {remote: "/srv/own", local: "srv/new", written: "srv/new"},
		"a tree under a new name":  {remote: "/srv/dir", local: "srv/new", tree: true, written: "srv/new/a"},
		"a link to a device stays": {remote: "/srv/null", local: "srv/null", written: "-"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Chdir(dir)
			for _, err := range []error{os.MkdirAll("home", 0o755), os.MkdirAll("srv", 0o755),
				os.WriteFile("home/keys", []byte("old"), 0o644), os.WriteFile("srv/own", []byte("old"), 0o644),
				os.Symlink("../home/keys", "srv/result.txt"), os.Symlink("../home/none", "srv/missing"),
				os.Symlink("../home", "srv/dir"), os.Symlink("/dev/null", "srv/null")} {
				if err != nil {
					t.Fatal(err)
				}
			}
			other, here := t.TempDir(), "."
			for _, err := range []error{os.Symlink(dir, filepath.Join(other, "work")),
				os.Symlink(filepath.Join(dir, "home"), filepath.Join(other, "dir"))} {
				if err != nil {
					t.Fatal(err)
				}
			}
			if c.linked {
				here = filepath.Join(other, "work")
			}
			t.Chdir(here)
			c.local = strings.NewReplacer("$PWD", dir, "$OTHER", other).Replace(c.local)
			copying := transfer{cl: cl, id: "sb-1", remote: c.remote, local: c.local}
			var err error
			if c.tree {
				err = copying.treeOut(t.Context(), io.Discard, io.Discard)
			} else {
				err = copying.fileOut(t.Context(), io.Discard)
			}
			refused := err != nil && strings.Contains(err.Error(), "is a symbolic link")
			if refused != (c.written == "") || !refused && err != nil {
				t.Errorf("copied with %v", err)
			}
			if p, err := os.ReadFile("home/keys"); err != nil || string(p) != "old" {
				t.Errorf("the file behind the link has %q, %v", p, err)
			}
			if made, err := filepath.Glob("home/*"); err != nil || len(made) != 1 && !strings.HasPrefix(c.written, "home/") {
				t.Errorf("behind the link are %q, %v", made, err)
			}
			if c.written == "" || c.written == "-" {
				return
			}
			if p, err := os.ReadFile(c.written); err != nil || string(p) != "new" {
				t.Errorf("%s has %q, %v", c.written, p, err)
			}
		})
	}
}
