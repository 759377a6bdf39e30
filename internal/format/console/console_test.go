package console

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	if got, err := Tail(f); err != nil || string(got.Bytes) != "hello" || got.Written != 5 || string(r.Tail()) != "hello" {
		t.Fatalf("%q, %v, its writer has %q", got.Bytes, err, r.Tail())
	}
	long := strings.Repeat("0123456789abcde\n", Size/16+7)
	r.WriteString(long)
	got, err := Tail(f)
	if err != nil || got.Written != uint64(5+len(long)) || !bytes.Equal(got.Bytes, []byte(long[len(long)-Size:])) {
		t.Fatalf("tail of a flood differs: %d bytes, %v", len(got.Bytes), err)
	}
	if !bytes.Equal(r.Tail(), got.Bytes) {
		t.Fatal("the writer of a flood has another tail")
	}
}

// Format allocates all blocks of the file. If the file had holes, a store on a full disk would kill
// the VMM with SIGBUS.
func TestARingHasAllItsBlocks(t *testing.T) {
	_, f := newRing(t)
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Blocks*512 < header+Size {
		t.Errorf("the ring of %d bytes takes %d on disk (%v)", header+Size, st.Blocks*512, err)
	}
	if got, err := Tail(f); err != nil || len(got.Bytes) != 0 {
		t.Errorf("an empty ring has %d bytes, %v", len(got.Bytes), err)
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
	if _, err := Tail(f); err == nil {
		t.Fatal("an empty file was read as a ring")
	}
}

// Since returns the lines of the block that was last written at the given time, and later lines.
func TestSince(t *testing.T) {
	r, f := newRing(t)
	line := strings.Repeat("x", block-1) + "\n"
	for range 3 {
		r.WriteString(line)
	}
	r.WriteString("half")
	stamps := []int64{1000, 2000, 3000, 4000}
	for i, at := range stamps { // gives each block a different time
		binary.LittleEndian.PutUint64(r.mem[times+8*i:], uint64(at))
	}
	for at, want := range map[int64]string{0: line + line + line + "half", 1001: line + line + "half", 3000: line + "half",
		3001: "half", 4001: ""} {
		got, err := Tail(f)
		if err != nil || string(got.Since(time.UnixMilli(at))) != want {
			t.Errorf("since %d: %d bytes, want %d (%v)", at, len(got.Since(time.UnixMilli(at))), len(want), err)
		}
	}
	binary.LittleEndian.PutUint64(r.mem[times+8:], 0) // 0, as if a VMM without this field had written the ring
	if got, err := Tail(f); err != nil || string(got.Since(time.UnixMilli(3500))) != line+line+"half" {
		t.Errorf("without a time: %q, %v", got.Since(time.UnixMilli(3500)), err)
	}

	before := time.Now()
	r.WriteString(strings.Repeat("0123456789abcde\n", Size/16))
	got, err := Tail(f)
	if err != nil || len(got.Since(before)) < Size-2*block || got.Since(time.Now().Add(time.Minute)) != nil {
		t.Errorf("of a full ring: %d bytes, %v", len(got.Since(before)), err)
	}
	if p, lost := got.Behind(0); len(p) != Size || lost != got.Written-Size {
		t.Errorf("behind the beginning: %d bytes, %d lost", len(p), lost)
	}
	if p, lost := got.Behind(got.Written - 3); string(p) != "de\n" || lost != 0 {
		t.Errorf("behind all but 3: %q, %d lost", p, lost)
	}
	if p, lost := got.Behind(got.Written + 1); p != nil || lost != 0 {
		t.Errorf("behind what is not there yet: %q, %d lost", p, lost)
	}
}

// A VMM can write anything to the ring's file, and so can a guest that has taken over its VMM.
// Readers of the file must not panic.
func TestALyingRingDoesNoHarm(t *testing.T) {
	r, f := newRing(t)
	for _, total := range []uint64{math.MaxUint64, math.MaxUint64 - 100, math.MaxUint64 - block*blocks, 1 << 63} {
		binary.LittleEndian.PutUint64(r.mem, total)
		got, err := Tail(f)
		if err != nil || len(got.Bytes) != Size {
			t.Fatalf("%d: %d bytes, %v", total, len(got.Bytes), err)
		}
		got.Since(time.Now())
		got.Behind(5)
	}
}
