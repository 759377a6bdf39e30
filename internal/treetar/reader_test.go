package treetar

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

// bigHeader returns an extended header of 1 MiB, and the entry to which it belongs.
func bigHeader(t *testing.T) (extended, entry []byte) {
	t.Helper()
	var b bytes.Buffer
	h := tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "x",
		PAXRecords: map[string]string{"SCHILY.xattr.user.x": strings.Repeat("x", 1000<<10)}}
	if err := tar.NewWriter(&b).WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()[:b.Len()-512], b.Bytes()[b.Len()-512:]
}

// endless is a reader that repeats a text and counts the bytes read.
type endless struct {
	text []byte
	read int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.read > 1<<30 {
		return 0, errors.New("a gigabyte was read")
	}
	n := copy(p, e.text[e.read%len(e.text):])
	e.read += n
	return n, nil
}

// Unpack bounds headers that no entry follows.
func TestHeadersWithoutEntriesAreBounded(t *testing.T) {
	extended, _ := bigHeader(t)
	root, _, _ := open(t)
	from := &endless{text: extended}
	if err := Unpack(from, Target{Root: root}); !errors.Is(err, ErrHeaders) || from.read > maxHeaders {
		t.Errorf("%d bytes were read: %v", from.read, err)
	}
}

// The bound applies to each entry separately. Content does not count, whether the caller has read
// it or not.
func TestHeadersAreBoundedByEntry(t *testing.T) {
	extended, entry := bigHeader(t)
	var b bytes.Buffer
	for range 10 {
		b.Write(extended)
		b.Write(extended)
		b.Write(entry)
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Size: maxHeaders + 1000}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, maxHeaders+1000)); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	b.Write(make([]byte, 1024))
	in, entries := NewReader(&b), 0
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if entries++; entries%4 == 0 {
			if n, err := io.Copy(io.Discard, in); err != nil || n != h.Size {
				t.Errorf("%d bytes, %v", n, err)
			}
		}
	}
	if entries != 20 {
		t.Errorf("%d entries, want 20", entries)
	}
}
