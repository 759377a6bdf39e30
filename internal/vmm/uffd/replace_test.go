package uffd

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// writer writes increasing numbers to random words in its part of the memory, and records what the
// memory must contain. It can be stopped between two writes.
type writer struct {
	from, pages uint64
	write       func(gpa guestmem.GPA, word []byte) error

	mu   sync.Mutex // held during a write
	seq  uint64
	want map[guestmem.GPA]uint64
}

func (w *writer) run(t *testing.T, seed uint64, stop *atomic.Bool) {
	for x := seed; !stop.Load(); {
		w.mu.Lock()
		for range 32 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			page := x % w.pages
			if x>>60 != 0 {
				page %= w.pages/8 + 1 // most writes are to a few pages, as in a guest
			}
			w.seq++
			gpa := guestmem.GPA((w.from+page)*guestmem.PageSize + x>>40%500*8)
			var word [8]byte
			binary.LittleEndian.PutUint64(word[:], w.seq)
			if err := w.write(gpa, word[:]); err != nil {
				t.Error(err)
			}
			w.want[gpa] = w.seq
		}
		w.mu.Unlock()
	}
}

// check compares the memory with the recorded content. The writer must be stopped.
func (w *writer) check(t *testing.T, m *guestmem.Memory, round int) {
	t.Helper()
	for gpa, want := range w.want {
		var word [8]byte
		if err := m.ReadAt(word[:], gpa); err != nil {
			t.Fatal(err)
		}
		if got := binary.LittleEndian.Uint64(word[:]); got != want {
			t.Fatalf("round %d: %d at %#x, %d was written", round, got, uint64(gpa), want)
		}
	}
}

// Layers replace unchanged pages again and again, while a "vCPU" and a "device" write. No write is
// lost, only pages that differ from the layers are private, and the memory of replaced pages is
// freed.
func TestReplaceUnderFire(t *testing.T) {
	m, f, dir := newFrozenMemory(t, 8*mib)
	tracker, err := guestmem.NewTracker("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer tracker.Close()
	src, err := os.Create(filepath.Join(dir, "word"))
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	half := m.Size() / guestmem.PageSize / 2
	cpu := &writer{pages: half, want: map[guestmem.GPA]uint64{}, write: func(gpa guestmem.GPA, word []byte) error {
		if _, err := src.WriteAt(word, 0); err != nil {
			return err
		}
		view, err := m.ReadView(gpa, len(word))
		if err == nil {
			_, err = unix.Pread(int(src.Fd()), view, 0) // faults in a system call, like a vCPU
		}
		return err
	}}
	device := &writer{from: half, pages: half, want: map[guestmem.GPA]uint64{},
		write: func(gpa guestmem.GPA, word []byte) error { return m.WriteAt(word, gpa) }}
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() { cpu.run(t, 88172645463325252, &stop) })
	wg.Go(func() { device.run(t, 1234567, &stop) })
	defer func() {
		stop.Store(true)
		wg.Wait()
	}()
	pause := func() func() {
		cpu.mu.Lock()
		device.mu.Lock()
		return func() { cpu.mu.Unlock(); device.mu.Unlock() }
	}
	var parent []byte // content of the layer below the private pages; nil if unknown
	replaced, refaults := uint64(0), uint64(0)
	for round := range 30 {
		if err := f.Register(); err != nil {
			t.Fatal(err)
		}
		layer, err := os.CreateTemp(dir, "layer")
		if err != nil {
			t.Fatal(err)
		}
		if err := layer.Truncate(int64(m.Size())); err != nil {
			t.Fatal(err)
		}
		resume := sync.OnceFunc(pause())
		defer resume()
		cpu.check(t, m, round)
		device.check(t, m, round)
		dirty, err := tracker.Dirty(m)
		if err != nil {
			t.Fatal(err)
		}
		now := make([]byte, m.Size())
		if err := m.ReadAt(now, 0); err != nil {
			t.Fatal(err)
		}
		if parent != nil {
			for _, r := range dirty {
				copy(parent[r.GPA:], now[r.GPA:r.GPA+guestmem.GPA(r.Length)])
			}
			if !bytes.Equal(parent, now) {
				t.Fatalf("round %d: a page that differs from the layers is not private", round)
			}
		}
		parent = now
		c, err := f.Freeze(dirty, int(layer.Fd()))
		resume()
		if err != nil {
			t.Fatal(err)
		}
		if complete, err := c.Copy(func() bool { return false }); err != nil || !complete {
			t.Fatal(complete, err)
		}
		if round%3 == 2 { // release the capture without a rebase
			if err := c.Release(); err != nil {
				t.Fatal(err)
			}
			parent = nil
			layer.Close()
			continue
		}
		for _, r := range c.Unchanged() {
			done, err := c.Replace(r, int(layer.Fd()), 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range done {
				replaced += r.Length
			}
		}
		refaults += c.refaults.Load()
		if err := c.Release(); err != nil {
			t.Fatal(err)
		}
		layer.Close()
	}
	if replaced == 0 || refaults == 0 {
		t.Errorf("%d bytes replaced, %d writes to captured pages: the test did not test anything", replaced, refaults)
	}
}

// After many faults, one fault opens several pages. So a guest that writes all captured pages does
// not fault for each page. Pages that were opened in this way are not replaced.
func TestManyWritersOpenMoreThanTheirPage(t *testing.T) {
	m, f, dir := newFrozenMemory(t, 8*mib)
	if err := m.WriteAt(bytes.Repeat([]byte{7}, 8*mib), 0); err != nil {
		t.Fatal(err)
	}
	layer, err := os.Create(filepath.Join(dir, "layer"))
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Close()
	c, err := f.Freeze([]guestmem.Range{{GPA: 0, Length: 8 * mib}}, int(layer.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Copy(func() bool { return false }); err != nil {
		t.Fatal(err)
	}
	src, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	view, err := m.ReadView(0, 6*mib)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Read(int(src.Fd()), view); n != len(view) || err != nil {
		t.Fatal(n, err)
	}
	pages := uint64(6 * mib / guestmem.PageSize)
	if n := c.refaults.Load(); n <= manyFaults || n > manyFaults+pages/aroundPages+1 {
		t.Errorf("%d faults for %d pages", n, pages)
	}
	for _, r := range c.Unchanged() {
		if r.GPA < 6*mib {
			t.Errorf("%#x+%#x was written", uint64(r.GPA), r.Length)
		}
		if _, err := c.Replace(r, int(layer.Fd()), 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Release(); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 8*mib)
	if err := m.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	want := append(make([]byte, 6*mib), bytes.Repeat([]byte{7}, 2*mib)...)
	if !bytes.Equal(got, want) {
		t.Error("the memory is not what was written")
	}
}
