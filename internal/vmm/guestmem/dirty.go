package guestmem

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Range is Length bytes of guest memory, beginning at GPA. Both are multiples of PageSize.
type Range struct {
	GPA    GPA
	Length uint64
}

// Tracker finds the pages of guest memory that the guest or a device has written since they were
// mapped. These are the anonymous pages, including private copies of layer pages. A Tracker is not
// safe for concurrent use.
type Tracker struct {
	pagemap *os.File
	noScan  bool            // whether the kernel lacks PAGEMAP_SCAN (before Linux 6.7)
	vec     [128]pageRegion // filled by the kernel; on the heap, because the runtime may move a stack
}

// NewTracker opens the page map of this process. The parameter proc is the mount point of procfs.
func NewTracker(proc string) (*Tracker, error) {
	fd, err := unix.Open(proc+"/self/pagemap", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open page map: %w", err)
	}
	return &Tracker{pagemap: os.NewFile(uintptr(fd), "page map")}, nil
}

// Close closes the page map.
func (t *Tracker) Close() error { return t.pagemap.Close() }

// Dirty returns the written ranges of m in ascending order. Adjacent ranges are joined. The result
// may contain a page of zeros that was only read.
//
// Preconditions: the vCPUs are stopped and the devices quiesced. If they are not, the result is
// only an estimate.
func (t *Tracker) Dirty(m *Memory) ([]Range, error) {
	var ranges []Range
	for i := range m.regions {
		r := &m.regions[i]
		var err error
		if !t.noScan {
			ranges, err = t.scan(ranges, r)
			if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
				t.noScan = true
			}
		}
		if t.noScan {
			ranges, err = t.read(ranges, r)
		}
		if err != nil {
			return nil, fmt.Errorf("find written pages: %w", err)
		}
	}
	return ranges, nil
}

// DirtyBytes returns the number of bytes in the ranges of Dirty.
func (t *Tracker) DirtyBytes(m *Memory) (uint64, error) {
	ranges, err := t.Dirty(m)
	if err != nil {
		return 0, err
	}
	var n uint64
	for _, r := range ranges {
		n += r.Length
	}
	return n, nil
}

func appendRange(ranges []Range, gpa GPA, length uint64) []Range {
	if n := len(ranges); n > 0 && ranges[n-1].GPA+GPA(ranges[n-1].Length) == gpa {
		ranges[n-1].Length += length
		return ranges
	}
	return append(ranges, Range{gpa, length})
}

// PAGEMAP_SCAN of <linux/fs.h>: _IOWR('f', 16, struct pm_scan_arg).
const ioPagemapScan = 3<<30 | 96<<16 | 'f'<<8 | 16

// Page categories of PAGEMAP_SCAN.
const (
	pageIsFile    = 1 << 2
	pageIsPresent = 1 << 3
	pageIsSwapped = 1 << 4
	pageIsPFNZero = 1 << 5
)

type pmScanArg struct {
	size, flags, start, end, walkEnd, vec, vecLen, maxPages       uint64
	categoryInverted, categoryMask, categoryAnyOfMask, returnMask uint64
}

type pageRegion struct{ start, end, categories uint64 }

func (t *Tracker) scan(ranges []Range, r *Region) ([]Range, error) {
	base, pagemap := uint64(r.HVA()), t.pagemap.Fd()
	for at := base; at < base+r.Size; {
		arg := pmScanArg{
			start: at, end: base + r.Size,
			vec: uint64(uintptr(unsafe.Pointer(&t.vec[0]))), vecLen: uint64(len(t.vec)),
			// Select pages that are in memory or in swap, but neither pages of a file nor the
			// shared zero page.
			categoryInverted: pageIsFile | pageIsPFNZero, categoryMask: pageIsFile | pageIsPFNZero,
			categoryAnyOfMask: pageIsPresent | pageIsSwapped, returnMask: pageIsPresent,
		}
		arg.size = uint64(unsafe.Sizeof(arg))
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, pagemap, ioPagemapScan, uintptr(unsafe.Pointer(&arg)))
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return ranges, errno
		}
		for _, p := range t.vec[:n] {
			ranges = appendRange(ranges, r.GPA+GPA(p.start-base), p.end-p.start)
		}
		at = arg.walkEnd
	}
	return ranges, nil
}

// Bits of a /proc/pid/pagemap word (Documentation/admin-guide/mm/pagemap.rst).
const (
	pagemapPresent = 1 << 63
	pagemapSwapped = 1 << 62
	pagemapFile    = 1 << 61
)

func (t *Tracker) read(ranges []Range, r *Region) ([]Range, error) {
	var buf [64 << 10]byte // enough words for 32 MiB of memory
	first := int64(uint64(r.HVA()) / PageSize)
	for done := uint64(0); done < r.Size; {
		want := min((r.Size-done)/PageSize*8, uint64(len(buf)))
		n, err := t.pagemap.ReadAt(buf[:want], (first+int64(done/PageSize))*8)
		if n < 8 {
			return ranges, fmt.Errorf("read page map: %w", err)
		}
		for i := 0; i+8 <= n; i += 8 {
			e := binary.LittleEndian.Uint64(buf[i:])
			if e&(pagemapPresent|pagemapSwapped) != 0 && e&pagemapFile == 0 {
				ranges = appendRange(ranges, r.GPA+GPA(done), PageSize)
			}
			done += PageSize
		}
	}
	return ranges, nil
}
