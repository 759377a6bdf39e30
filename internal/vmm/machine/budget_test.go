package machine

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/uffd"
	"github.com/forkd/forkd/internal/vmtest/opcount"
)

// Requests of ioctls that a freeze makes.
const (
	writeProtect = 0xc018aa06 // UFFDIO_WRITEPROTECT
	pagemapScan  = 0xc0606610 // PAGEMAP_SCAN
)

// dirtied returns a machine with memory alone, whose page i is dirty if dirty(i) is true, and a file
// for a layer. The machine can be frozen.
func dirtied(t *testing.T, pages uint64, dirty func(i uint64) bool) (*Machine, *os.File) {
	t.Helper()
	device, err := unix.Open("/dev/userfaultfd", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		if os.Getenv("FORKD_TEST_MACHINE") != "" {
			t.Fatalf("userfaultfd in the test machine: %v", err)
		}
		t.Skipf("no userfaultfd: %v", err)
	}
	defer unix.Close(device)
	mem, err := guestmem.New(pages * guestmem.PageSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mem.Close() })
	tracker, err := guestmem.NewTracker("/proc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tracker.Close() })
	m := &Machine{mem: mem, tracker: tracker}
	if err := m.prepareFreezer(device); err != nil {
		t.Fatal(err)
	}
	for i := range pages {
		if !dirty(i) {
			continue
		}
		if err := mem.WriteAt([]byte{1}, guestmem.GPA(i*guestmem.PageSize)); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("/dev/shm", "fkt")
	if err != nil {
		t.Skipf("no tmpfs: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	layer, err := os.Create(filepath.Join(dir, "layer"))
	if err == nil {
		err = layer.Truncate(int64(mem.Size()))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { layer.Close() })
	return m, layer
}

// TestCountsOfAFreeze bounds the work of a live branch while the guest is paused: ioctls, bytes that
// are copied, and bytes that are allocated. In the last case there are more dirty ranges than
// extents, so the pages between some ranges are copied too.
func TestCountsOfAFreeze(t *testing.T) {
	const pages, extents = 4 << 10, 1024 // 16 MiB; a quarter of the pages may be extents
	counter := opcount.Start(t)
	for _, c := range []struct {
		name             string
		dirty            func(uint64) bool
		protects, scans  uint64
		copied, bookkept uint64 // bytes
	}{
		{name: "contiguous", dirty: func(i uint64) bool { return i < pages/2 },
			protects: 1, scans: 1, bookkept: 16 << 10},
		{name: "alternating", dirty: func(i uint64) bool { return i < 2*extents && i%2 == 0 },
			protects: extents, scans: extents/128 + 1, bookkept: 288 << 10},
		{name: "more ranges than extents", dirty: func(i uint64) bool { return i%2 == 0 },
			protects: pages / 2, scans: pages/2/128 + 1, copied: (pages/2 - extents) << 12, bookkept: 528 << 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, layer := dirtied(t, pages, c.dirty)
			own := os.Getpid()
			protects, scans := ioctls(t, counter, own, writeProtect), ioctls(t, counter, own, pagemapScan)
			capture, bookkept := frozen(t, m, layer, extents)
			var st unix.Stat_t
			if err := unix.Fstat(int(layer.Fd()), &st); err != nil {
				t.Fatal(err)
			}
			protects, scans = ioctls(t, counter, own, writeProtect)-protects, ioctls(t, counter, own, pagemapScan)-scans
			if _, err := capture.Copy(func() bool { return false }); err != nil {
				t.Fatal(err)
			}
			if err := capture.Release(); err != nil {
				t.Fatal(err)
			}
			if protects == 0 || scans == 0 {
				t.Errorf("%d write-protecting ioctls and %d scans: nothing was counted", protects, scans)
			}
			for _, b := range []struct {
				what       string
				have, most uint64
			}{
				{"write-protecting ioctls of a freeze", protects, c.protects},
				{"scans of the page map in a freeze", scans, c.scans},
				{"bytes copied while the guest is paused", uint64(st.Blocks) * 512, c.copied},
				{"bytes allocated while the guest is paused", bookkept, c.bookkept},
			} {
				opcount.Budget{What: b.what, Most: b.most}.Check(t, b.have, nil)
			}
		})
	}
}

// frozen freezes the machine, and returns how many bytes of Go's heap that took. The number contains
// the few KiB that other goroutines allocate at the same time.
func frozen(t *testing.T, m *Machine, layer *os.File, extents int) (*uffd.Capture, uint64) {
	t.Helper()
	var before, after runtime.MemStats
	var result vmmproto.SaveResult
	runtime.ReadMemStats(&before)
	capture, err := m.freeze(layer, extents, &result)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	return capture, after.TotalAlloc - before.TotalAlloc
}

func ioctls(t *testing.T, c *opcount.Counter, pid int, request uint32) uint64 {
	t.Helper()
	n, err := c.Ioctls(pid, request)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
