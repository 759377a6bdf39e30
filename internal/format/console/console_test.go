package console

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func newRing(t *testing.T) (*Ring, *os.File) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "ring"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := Format(f); err != nil {
		t.Fatal(err)
	}
	r, err := Open(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r, f
}

func TestTailKeepsTheLastBytes(t *testing.T) {
	r, f := newRing(t)
	r.WriteString("hello")
	if got, written, err := Tail(f); err != nil || string(got) != "hello" || written != 5 || string(r.Tail()) != "hello" {
		t.Fatalf("%q, %v, its writer has %q", got, err, r.Tail())
	}
	long := strings.Repeat("0123456789abcde\n", Size/16+7)
	r.WriteString(long)
	got, written, err := Tail(f)
	if err != nil || written != uint64(5+len(long)) || !bytes.Equal(got, []byte(long[len(long)-Size:])) {
		t.Fatalf("tail of a flood differs: %d bytes, %v", len(got), err)
	}
	if !bytes.Equal(r.Tail(), got) {
		t.Fatal("the writer of a flood has another tail")
	}
}

func TestAForeignFileIsRefused(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "ring"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := Open(f); err == nil {
		t.Fatal("an empty file was opened as a ring")
	}
	if _, _, err := Tail(f); err == nil {
		t.Fatal("an empty file was read as a ring")
	}
}
