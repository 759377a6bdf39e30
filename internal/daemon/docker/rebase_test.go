package docker

import (
	"archive/tar"
	"bytes"
	"errors"
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
		if err := f.rebase(&out, &in, &dir); err == nil {
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
	if err := f.rebase(&out, &in, &dir); err != nil {
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

func TestParsePS(t *testing.T) {
	list, err := parsePS("PID CMD\n 1 a b  c\n\n 22 d\n")
	if err != nil || len(list.Processes) != 2 || list.Processes[0][1] != "a b c" || list.Processes[1][0] != "22" {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := parsePS("PID CMD\n1\n"); err == nil {
		t.Error("a line without a column is accepted")
	}
	if list, err := parsePS(""); err != nil || len(list.Processes) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}
