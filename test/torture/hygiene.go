package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// holdings are the resources that the rig has in use.
type holdings struct {
	files      int // open descriptors
	vmms       int // directories of VMMs
	routines   int
	ramKiB     uint64 // used memory of the tmpfs
	ramFreeKiB uint64
	heapKiB    uint64
}

// String returns the figures in one line.
func (h holdings) String() string {
	return fmt.Sprintf("%d descriptors, %d VMMs, %d goroutines, %d MiB of tmpfs (%d free), %d KiB of heap",
		h.files, h.vmms, h.routines, h.ramKiB>>10, h.ramFreeKiB>>10, h.heapKiB)
}

// measure returns the resources in use. It first collects garbage, because the garbage collection
// closes the files of snapshots that are no longer referenced.
func (r *Rig) measure() (h holdings, err error) {
	runtime.GC()
	if h.files, err = entries("/proc/self/fd"); err != nil {
		return h, err
	}
	if h.vmms, err = entries(r.dir); err != nil {
		return h, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(r.ram, &fs); err != nil {
		return h, fmt.Errorf("measure %s: %w", r.ram, err)
	}
	h.ramKiB, h.ramFreeKiB = (fs.Blocks-fs.Bfree)*uint64(fs.Bsize)>>10, fs.Bfree*uint64(fs.Bsize)>>10
	h.routines = runtime.NumGoroutine()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	h.heapKiB = m.HeapAlloc >> 10
	return h, nil
}

func entries(dir string) (int, error) {
	list, err := os.ReadDir(dir)
	return len(list), err
}

// How much the use of resources may have grown since the measurement before the first line of
// descent. There is some growth because connections are still being closed, and because the Go
// runtime needs resources.
const (
	slackRoutines = 8
	slackFiles    = 8
	slackRAMKiB   = 256
	slackHeapKiB  = 16 << 10
)

func (h holdings) exceeds(base holdings) bool {
	return h.files > base.files+slackFiles || h.vmms > base.vmms || h.routines > base.routines+slackRoutines ||
		h.ramKiB > base.ramKiB+slackRAMKiB || h.heapKiB > base.heapKiB+slackHeapKiB
}

// measureTries is how often a measurement is repeated if it is too high. Some files are closed only
// some time after their last use.
const measureTries = 100

// clean is called between lines of descent. It checks that the rig uses no more resources than in
// the given measurement (base), which was made before the first line.
func (r *Rig) clean(base holdings) error {
	var h holdings
	var err error
	for range measureTries {
		if h, err = r.measure(); err != nil {
			return err
		}
		if !h.exceeds(base) {
			r.logf("held: %v", h)
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("the run grows: %v; before the first line of descent %v", h, base)
}

// Resources that a VMM may use in addition to disk layers and guest memory. Its heap grows with the
// lists of written pages.
const (
	maxOwnFiles   = 36
	ownMemoryKiB  = 16 << 10
	ownMemoryPart = 16 // this fraction, 1/16, of the guest's memory is permitted in addition
)

// lean checks that the source's VMM does not keep resources of earlier branches.
func (l *line) lean(ctx context.Context) error {
	v := l.source
	files, err := entries(fmt.Sprintf("/proc/%d/fd", v.PID()))
	if err != nil {
		return err
	}
	private, err := anonymous(v.PID())
	if err != nil {
		return err
	}
	stats, err := v.Stats(ctx) // measured last, because the number of dirty pages only grows
	if err != nil {
		return err
	}
	own := private - min(private, stats.GuestDirtyBytes>>10)
	l.rig.rep.held(files-len(v.files), own)
	if files-len(v.files) > maxOwnFiles || own > ownMemoryKiB+l.rig.shape.MemoryBytes>>10/ownMemoryPart {
		return fmt.Errorf("%s holds %d descriptors besides %d disk layers, and %d KiB of memory besides the guest's",
			v.name, files-len(v.files), len(v.files), own)
	}
	return nil
}

// anonymous returns the private memory of a process in KiB.
func anonymous(pid int) (uint64, error) {
	p, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(p), "\nRssAnon:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0, errors.New("/proc/pid/status has no RssAnon")
	}
	return strconv.ParseUint(fields[0], 10, 64)
}

// roomy reports whether the tmpfs has room for the layers that are added before the next check.
func (r *Rig) roomy() (bool, error) {
	h, err := r.measure()
	return h.ramFreeKiB<<10 > roomForVMs*r.shape.MemoryBytes, err
}

// roomForVMs bounds the size of the layers that a step may add, as a multiple of the guest's
// memory.
const roomForVMs = 3

// mountRAM mounts a separate tmpfs for the rig, so that the use of the tmpfs can be measured. The
// returned function unmounts the tmpfs.
func mountRAM(dir string) (undo func() error, err error) {
	if err := unix.Mount("torture", dir, "tmpfs", 0, "size=60%,mode=700"); err != nil {
		return nil, fmt.Errorf("mount a tmpfs for layers: %w", err)
	}
	return func() error { return unix.Unmount(dir, unix.MNT_DETACH) }, nil
}
