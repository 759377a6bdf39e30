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

const mib = 1 << 20

// newFrozenMemory returns memory over a layer on tmpfs, with its Freezer. It skips the test if the
// host has no userfaultfd.
func newFrozenMemory(t *testing.T, size uint64) (*guestmem.Memory, *Freezer, string) {
	t.Helper()
	dev, err := unix.Open("/dev/userfaultfd", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		if os.Getenv("FORKD_TEST_MACHINE") != "" {
			t.Fatalf("userfaultfd in the test machine: %v", err)
		}
		t.Skipf("no userfaultfd: %v", err)
	}
	defer unix.Close(dev)
	dir, err := os.MkdirTemp("/dev/shm", "uffd-test-")
	if err != nil {
		t.Skipf("no tmpfs: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	m, err := guestmem.New(size)
	if err != nil {
		t.Fatal(err)
	}
	base, err := os.Create(filepath.Join(dir, "base"))
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	if err := base.Truncate(int64(size / 2)); err != nil {
		t.Fatal(err)
	}
	// The lower half is mapped from a file, as in a fork. The upper half is anonymous, as after a
	// boot.
	if err := m.Map(0, size/2, int(base.Fd()), 0); err != nil {
		t.Fatal(err)
	}
	f, err := NewFreezer(dev, m)
	if err == nil {
		err = f.Register()
	}
	if err != nil {
		t.Fatal(err)
	}
	return m, f, dir
}

// scribbler writes increasing numbers to random words of the memory. Like a vCPU, it can be
// stopped, and its writes fault inside a system call.
type scribbler struct {
	mem  *guestmem.Memory
	mu   sync.Mutex // held during a write; locking it stops the "vCPU"
	stop atomic.Bool
	seq  uint64
	src  *os.File
}

func (s *scribbler) run(t *testing.T, seed uint64) {
	x := seed
	pages := s.mem.Size() / guestmem.PageSize
	for !s.stop.Load() {
		s.mu.Lock()
		for range 64 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			s.seq++
			var word [8]byte
			binary.LittleEndian.PutUint64(word[:], s.seq)
			if _, err := s.src.WriteAt(word[:], 0); err != nil {
				t.Error(err)
			}
			view, err := s.mem.ReadView(guestmem.GPA(x%pages*guestmem.PageSize+x>>40%500*8), 8)
			if err != nil {
				t.Error(err)
			}
			if _, err := unix.Pread(int(s.src.Fd()), view, 0); err != nil {
				t.Error(err)
			}
		}
		s.mu.Unlock()
	}
}

// A capture contains the memory as it was at one instant, even if "vCPUs" and "devices" write while
// the pages are copied. The test makes many captures.
func TestFreezeIsOneInstantUnderFire(t *testing.T) {
	m, f, dir := newFrozenMemory(t, 16*mib)
	tracker, err := guestmem.NewTracker("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer tracker.Close()
	src, err := os.Create(filepath.Join(dir, "word"))
	if err != nil {
		t.Fatal(err)
	}
	cpu := &scribbler{mem: m, src: src}
	var wg sync.WaitGroup
	wg.Go(func() { cpu.run(t, 88172645463325252) })
	var devStop atomic.Bool
	var dev sync.Mutex // simulates a device's run lock
	wg.Go(func() {
		for i := uint64(0); !devStop.Load(); i++ {
			dev.Lock()
			gpa := guestmem.GPA(i * 7919 % (16*mib - 8192))
			if err := m.WriteAt(bytes.Repeat([]byte{byte(i)}, 5000), gpa); err != nil {
				t.Error(err)
			}
			if err := m.StoreUint16(gpa&^1, uint16(i)); err != nil {
				t.Error(err)
			}
			dev.Unlock()
		}
	})
	faults := uint64(0)
	for range 30 {
		faults += freezeOnce(t, m, f, tracker, dir, &cpu.mu, &dev)
	}
	cpu.stop.Store(true)
	devStop.Store(true)
	wg.Wait()
	if faults == 0 {
		t.Error("no write ever met a protected page: the test did not test anything")
	}
}

func freezeOnce(t *testing.T, m *guestmem.Memory, f *Freezer, tracker *guestmem.Tracker, dir string,
	stop ...sync.Locker) uint64 {
	t.Helper()
	layer, err := os.Create(filepath.Join(dir, "layer"))
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Close()
	for _, l := range stop {
		l.Lock()
	}
	ranges, err := tracker.Dirty(m)
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, m.Size())
	if err := m.ReadAt(want, 0); err != nil {
		t.Fatal(err)
	}
	c, err := f.Freeze(ranges, int(layer.Fd()))
	for _, l := range stop {
		l.Unlock()
	}
	if err != nil {
		t.Fatal(err)
	}
	if complete, err := c.Copy(func() bool { return false }); err != nil || !complete {
		t.Fatal(complete, err)
	}
	got := make([]byte, m.Size())
	for _, r := range ranges {
		if _, err := layer.ReadAt(got[r.GPA:r.GPA+guestmem.GPA(r.Length)], int64(r.GPA)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got[r.GPA:r.GPA+guestmem.GPA(r.Length)], want[r.GPA:r.GPA+guestmem.GPA(r.Length)]) {
			t.Fatalf("the layer differs from the memory at the freeze in %#x+%#x", r.GPA, r.Length)
		}
	}
	total, captured, faults := c.Progress()
	if total != captured {
		t.Fatalf("%d of %d pages captured", captured, total)
	}
	if err := c.Release(); err != nil {
		t.Fatal(err)
	}
	return faults
}

// A full disk makes the capture fail, and has no other effect.
func TestAFailedCaptureLeavesTheMemoryWritable(t *testing.T) {
	m, f, _ := newFrozenMemory(t, 2*mib)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	for gpa := guestmem.GPA(0); gpa < 2*mib; gpa += guestmem.PageSize {
		if err := m.WriteAt([]byte{1}, gpa); err != nil {
			t.Fatal(err)
		}
	}
	c, err := f.Freeze([]guestmem.Range{{GPA: 0, Length: 2 * mib}}, int(full.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Copy(func() bool { return false }); err == nil {
		t.Fatal("a capture to a full disk succeeded")
	}
	src, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	view, _ := m.ReadView(0, 2*mib)
	if n, err := unix.Read(int(src.Fd()), view); n != len(view) || err != nil {
		t.Fatalf("the memory stayed protected: %d, %v", n, err)
	}
	if c, err = f.Freeze([]guestmem.Range{{GPA: 0, Length: guestmem.PageSize}}, int(full.Fd())); err != nil {
		t.Fatalf("no further freeze: %v", err)
	}
	_, _ = c.Copy(func() bool { return false })
}

// If a device writes while the layer's disk is full, the branch fails, but the device works as
// usual.
func TestDevicesDoNotSeeAFailedCapture(t *testing.T) {
	m, f, _ := newFrozenMemory(t, 2*mib)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	if err := m.WriteAt(make([]byte, 2*mib/2), 0); err != nil {
		t.Fatal(err)
	}
	c, err := f.Freeze([]guestmem.Range{{GPA: 0, Length: mib}}, int(full.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.WriteAt([]byte("device"), 5000); err != nil {
		t.Errorf("write by a device: %v", err)
	}
	// A "vCPU" writes a page, and the fault handler captures it.
	src, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	view, _ := m.ReadView(0, guestmem.PageSize)
	if _, err := unix.Read(int(src.Fd()), view); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Copy(func() bool { return false }); err == nil {
		t.Error("a capture to a full disk succeeded")
	}
	if c, err = f.Freeze([]guestmem.Range{{GPA: 0, Length: guestmem.PageSize}}, int(full.Fd())); err != nil {
		t.Fatalf("no further freeze: %v", err)
	}
	_, _ = c.Copy(func() bool { return false })
}

// When a device is about to write a range, all pages of the range become writable. This holds for
// pages that were not frozen, pages that are already in the layer, and pages that were already
// written. The layer contains the bytes as they were at the moment of the freeze.
func TestDeviceOpensARange(t *testing.T) {
	const size, page = 2 * mib, guestmem.PageSize
	m, f, dir := newFrozenMemory(t, size)
	before := make([]byte, size)
	for i := range before {
		before[i] = byte(i / page)
	}
	if err := m.WriteAt(before, 0); err != nil {
		t.Fatal(err)
	}
	layer, err := os.Create(filepath.Join(dir, "layer"))
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Close()
	frozen := []guestmem.Range{{GPA: 0, Length: 100 * page}, {GPA: 103 * page, Length: 200 * page},
		{GPA: 400 * page, Length: page}}
	c, err := f.Freeze(frozen, int(layer.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	looks := 0
	if _, err := c.Copy(func() bool { looks++; return looks > 1 }); err != nil { // copies only one piece
		t.Fatal(err)
	}
	for _, at := range []guestmem.GPA{5 * page, 150*page + 7, 302 * page} {
		if err := m.WriteAt([]byte("written"), at); err != nil {
			t.Fatal(err)
		}
	}
	const from, n = 3*page + 1, size - 3*page - 1
	if _, err := m.WriteView(from, n); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(size / page) {
		if c.frozen(i) && i >= 3 && !c.open.get(i) {
			t.Fatalf("page %d is not open", i)
		}
	}
	if err := m.WriteAt(make([]byte, n), from); err != nil {
		t.Fatal(err)
	}
	if complete, err := c.Copy(func() bool { return false }); !complete || err != nil {
		t.Fatal(complete, err)
	}
	if faults := c.faults.Load() + c.refaults.Load(); faults != 0 {
		t.Errorf("the device has met %d faults", faults)
	}
	got := make([]byte, size)
	if _, err := layer.ReadAt(got[:401*page], 0); err != nil {
		t.Fatal(err)
	}
	for _, r := range frozen {
		if end := r.GPA + guestmem.GPA(r.Length); !bytes.Equal(got[r.GPA:end], before[r.GPA:end]) {
			t.Errorf("the layer has other bytes at %#x+%#x", uint64(r.GPA), r.Length)
		}
	}
	if err := c.Release(); err != nil {
		t.Fatal(err)
	}
}
