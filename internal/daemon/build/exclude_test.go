package build

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/build/dockerfile"
)

// guestArchive has files, directories ("a/") and hard links ("a=b").
func guestArchive(t *testing.T, names ...string) io.Reader {
	t.Helper()
	var text bytes.Buffer
	out := tar.NewWriter(&text)
	for _, name := range names {
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(name)), Mode: 0o640}
		if link, to, ok := strings.Cut(name, "="); ok {
			h.Name, h.Linkname, h.Typeflag, h.Size = link, to, tar.TypeLink, 0
		}
		if strings.HasSuffix(name, "/") {
			h.Typeflag, h.Size = tar.TypeDir, 0
		}
		err := out.WriteHeader(h)
		if h.Size > 0 {
			_, more := io.WriteString(out, name)
			err = errors.Join(err, more)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return &text
}

func TestEntriesAreLeftOut(t *testing.T) {
	leave, err := dockerfile.NewIgnore([]string{"*.txt", "drop", "!keep.txt"})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("long/", 60) + "name"
	r := without(guestArchive(t, "./", "./a.txt", "./keep.txt", "./drop/", "./drop/x", "./sub/", "./sub/a.txt",
		"./b=./keep.txt", "./drop/y=./keep.txt", "./"+long), leave)
	var got []string
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil || h.Typeflag == tar.TypeReg && string(text) != h.Name {
			t.Errorf("%s has %q, %v", h.Name, text, err)
		}
		got = append(got, h.Name)
	}
	if want := "./ ./keep.txt ./sub/ ./sub/a.txt ./b ./" + long; strings.Join(got, " ") != want {
		t.Errorf("%q are left, want %s", got, want)
	}
	for _, bad := range []io.Reader{guestArchive(t, "./a.txt", "./b=./a.txt"), strings.NewReader("no archive")} {
		r := without(bad, leave)
		if _, err := io.ReadAll(r); err == nil {
			t.Error("an archive with a link to nothing, or none, is taken")
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
