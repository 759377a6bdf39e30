package docker

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
)

// The archive of a hostile guest writes nothing outside of the name that the client has asked for.
func TestRebaseOfHostileArchives(t *testing.T) {
	dir := pathStat{Mode: fs.ModeDir | 0o755}
	f := filePath{base: "src"}
	for name, h := range map[string]tar.Header{
		"parent":   {Name: "../x", Typeflag: tar.TypeReg},
		"absolute": {Name: "/etc/x", Typeflag: tar.TypeReg},
		"inner":    {Name: "a/../../x", Typeflag: tar.TypeDir},
		"long":     {Name: strings.Repeat("x", 5000), Typeflag: tar.TypeReg},
	} {
		var in, out bytes.Buffer
		w := tar.NewWriter(&in)
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		w.Close()
		if err := f.rebase(&out, &in, &dir, free); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	var in, out bytes.Buffer
	w := tar.NewWriter(&in)
	for _, h := range []tar.Header{{Name: "dev", Typeflag: tar.TypeBlock},
		{Name: "hard", Typeflag: tar.TypeLink, Linkname: "/etc/x"},
		{Name: "suid", Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 7, Uname: "me"}} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	if err := f.rebase(&out, &in, &dir, free); err != nil {
		t.Fatal(err)
	}
	names := ""
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if names += h.Name + " "; h.Mode&^0o777 != 0 || h.Uid != 0 || h.Uname != "" {
			t.Errorf("%+v", h)
		}
	}
	if names != "src/ src/suid " {
		t.Errorf("%q", names)
	}
}

// free is passed to rebase as its last argument. It counts nothing.
func free(int) error { return nil }

// A hostile guest does not make a client write to the target of a link.
func TestRebaseOfEntriesBehindLinks(t *testing.T) {
	link := func(name string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: "/root"}
	}
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg} }
	folder := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir} }
	dir, single := pathStat{Mode: fs.ModeDir | 0o755}, pathStat{Mode: 0o644}
	for name, c := range map[string]struct {
		stat    *pathStat
		entries []tar.Header
		ok      bool
	}{
		"below a link":           {&dir, []tar.Header{link("a"), file("a/.bashrc")}, false},
		"far below a link":       {&dir, []tar.Header{link("b/a"), file("b/a/c/d")}, false},
		"below a spelled link":   {&dir, []tar.Header{link("./b//a"), file("b/a/c")}, false},
		"a file for a link":      {&dir, []tar.Header{link("a"), file("a")}, false},
		"a folder for a link":    {&dir, []tar.Header{link("a"), folder("a/")}, false},
		"below a replaced file":  {&dir, []tar.Header{file("a"), link("a"), file("a/b")}, false},
		"below a replaced dir":   {&dir, []tar.Header{folder("a"), link("a/x"), link("a"), file("a/b")}, false},
		"the folder itself":      {&dir, []tar.Header{link(".")}, false},
		"two entries for a file": {&single, []tar.Header{link("src"), file("src")}, false},
		"beside links": {&dir, []tar.Header{folder("b"), link("b/a"), file("b/aa"), link("b/c"), file("b/d/e"), file("a")},
			true},
		"one file": {&single, []tar.Header{file("src")}, true},
	} {
		var in, out bytes.Buffer
		w := tar.NewWriter(&in)
		for _, h := range c.entries {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		f := filePath{base: "src", path: "/src"}
		if err := f.rebase(&out, &in, c.stat, free); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The memory for links counts against the client's share.
func TestRebaseCountsLinks(t *testing.T) {
	var in bytes.Buffer
	w := tar.NewWriter(&in)
	for i := range 1000 {
		h := tar.Header{Name: fmt.Sprintf("d%d/a/b/c", i), Typeflag: tar.TypeSymlink, Linkname: "x"}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	total, full := 0, errors.New("full")
	f, dir := filePath{base: "src"}, pathStat{Mode: fs.ModeDir | 0o755}
	err := f.rebase(io.Discard, &in, &dir, func(n int) error {
		if total += n; total > 100<<10 {
			return full
		}
		return nil
	})
	if !errors.Is(err, full) {
		t.Errorf("%d bytes: %v", total, err)
	}
}

func TestParsePS(t *testing.T) {
	list, err := parsePS("PID CMD\n 1 a b  c\n\n 22 d\n")
	if err != nil || len(list.Processes) != 2 || list.Processes[0][1] != "a b c" || list.Processes[1][0] != "22" {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := parsePS("PID CMD\n1\n"); err == nil {
		t.Error("a line without a column is accepted")
	}
	if list, err := parsePS(strings.Repeat("1\n", maxRows+1)); err != nil || len(list.Processes) != maxRows {
		t.Errorf("%d lines, %v", len(list.Processes), err)
	}
	if list, err := parsePS(strings.Repeat("1\n", maxTop/2)); err == nil || len(list.Processes) > maxRows {
		t.Errorf("%d lines of a hostile guest are held, %v", len(list.Processes), err)
	}
	if list, err := parsePS(""); err != nil || len(list.Processes) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}
