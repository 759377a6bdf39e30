// Package admit decides whether the host, or the quota of an owner, has room for more sandboxes. It
// counts VMs and sandboxes, and checks memory and disk.
//
// The callers start the VMs and handle refusals.
package admit

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/host/backlog"
)

// Rules bound the sandboxes of a host. A zero field means no limit.
type Rules struct {
	MaxSandboxes  int     // maximum number of sandboxes that have a VM
	VCPUsPerCPU   float64 // maximum number of vCPUs of all VMs together, for each CPU of the host
	MemoryReserve uint64  // bytes of the host's memory that must stay available
	DiskReserve   uint64  // bytes that must stay free on the file system with the private disk tops
}

// startBytes is the memory that is counted for each starting VM, because the host's figure for
// available memory does not include it yet. A child writes about 1 MiB before it has confirmed, and
// its VMM and KVM use about 1 MiB each.
const startBytes = 4 << 20

// Codes of an Error. The API uses the same codes.
const (
	CodeMaxSandboxes = "max_sandboxes"
	CodeMaxVCPUs     = "max_vcpus"
	CodeHostMemory   = "host_memory"
	CodeHostDisk     = "host_disk"
	CodeOwnSandboxes = "own_sandboxes" // returned by Owners
	CodeVolumeQuota  = "volume_quota"  // returned by package volume
)

// Error reports that VMs were not started, or a volume was not made, because the host or the owner's
// quota has no room.
type Error struct {
	Code   string
	Reason string
}

func (e *Error) Error() string { return "not admitted: " + e.Reason }

// IsBusy reports whether err refuses a branch only for the moment: either too many branches are being
// made, or earlier branches are still being flushed to disk.
func IsBusy(err error) bool {
	var full *backlog.Error
	return errors.As(err, new(*BusyError)) || errors.As(err, &full) && full.Flush == nil
}

// BusyError reports that the host, or one owner, has too many operations of one kind at a time.
type BusyError struct {
	What  string
	Limit int
	Owner string // the owner whose limit is reached; empty: the host's limit is reached
}

func (e *BusyError) Error() string {
	if e.Owner != "" {
		return fmt.Sprintf("%d %s of %s are running, the most for one client at once; try again", e.Limit, e.What, e.Owner)
	}
	return fmt.Sprintf("%d %s are running, the most at once; try again", e.Limit, e.What)
}

// Host counts the VMs of a daemon's sandboxes. It includes VMs that are being started, so that two
// concurrent requests cannot both get the last free place. The methods of Host may be called
// concurrently.
type Host struct {
	rules     Rules
	dir       string                 // a directory on the file system to which DiskReserve applies
	available func() (uint64, error) // returns the host's available memory in bytes
	room      func(dir string) (free uint64, _ error)
	ended     func() bool // see New

	mu sync.Mutex
	// +checklocks:mu
	vms int
	// +checklocks:mu
	vcpus int
	// +checklocks:mu
	starting int // number of vms that are being started
	// +checklocks:mu
	free uint64 // latest result of available
	// +checklocks:mu
	asked time.Time // time of the latest reading
	// +checklocks:mu
	since int // number of VMs for which Enter has reserved places since the time in the field asked
}

// askEvery is the maximum age of the figure of the host's available memory. The kernel takes tens
// of microseconds to compute the figure, which is long for a fork.
const askEvery = 100 * time.Millisecond

// New returns a Host without VMs. The private disk tops of sandboxes are in dir. The Host calls
// ended when the host has too little memory. This function waits until killed VMs have given back
// their memory, and reports whether any have; if so, the Host checks the memory again.
func New(rules Rules, dir string, ended func() bool) *Host {
	return &Host{rules: rules, dir: dir, available: memAvailable, room: FreeBytes, ended: ended}
}

// again returns the result of check. If check refuses for lack of memory, but killed VMs have since
// given memory back, again calls check a second time.
func (h *Host) again(check func() error) error {
	err, refused := check(), (*Error)(nil)
	if !errors.As(err, &refused) || refused.Code != CodeHostMemory || !h.ended() {
		return err
	}
	h.mu.Lock()
	h.asked = time.Time{} // the memory has changed since the last reading
	h.mu.Unlock()
	return check()
}

// FreeBytes returns the free space of dir's file system, in bytes.
func FreeBytes(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// Enter reserves places for n VMs. If it returns an error, it has reserved no place. The caller
// must call Leave for each VM that has ended or failed. When all n VMs have started or failed, the
// caller must call Started once, with the same n.
func (h *Host) Enter(n int, vcpus uint32) error {
	return h.again(func() error { return h.enter(n, vcpus) })
}

func (h *Host) enter(n int, vcpus uint32) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.checkLocked(n, vcpus); err != nil {
		return err
	}
	h.vms, h.vcpus, h.starting, h.since = h.vms+n, h.vcpus+n*int(vcpus), h.starting+n, h.since+n
	return nil
}

// Check returns the error that Enter would return, and reserves nothing.
func (h *Host) Check(n int, vcpus uint32) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.checkLocked(n, vcpus)
}

// +checklocks:h.mu
func (h *Host) checkLocked(n int, vcpus uint32) error {
	r := &h.rules
	if r.MaxSandboxes > 0 && h.vms+n > r.MaxSandboxes {
		return refuse(CodeMaxSandboxes,
			"%d more would exceed the maximum of %d sandboxes, of which %d run or are paused; kill or "+
				"suspend some, or raise the daemon's --max-sandboxes", n, r.MaxSandboxes, h.vms)
	}
	most := int(r.VCPUsPerCPU * float64(runtime.NumCPU()))
	if r.VCPUsPerCPU > 0 && h.vcpus+n*int(vcpus) > most {
		return refuse(CodeMaxVCPUs,
			"%d more vCPUs would exceed the maximum of %d, of which %d are taken; kill or suspend sandboxes, "+
				"or raise the daemon's --vcpu-overcommit", n*int(vcpus), most, h.vcpus)
	}
	if r.MemoryReserve > 0 {
		if err := h.askLocked(); err != nil {
			return err
		}
		if need := r.MemoryReserve + uint64(max(h.starting, h.since)+n)*startBytes; h.free < need {
			return refuse(CodeHostMemory, "the host has %d MiB of memory available, and %d more sandboxes want %d MiB with the "+
				"daemon's reserve of %d; kill or suspend some, or lower --memory-reserve-mib",
				h.free>>20, n, need>>20, r.MemoryReserve>>20)
		}
	}
	if r.DiskReserve > 0 {
		free, err := h.room(h.dir)
		if err != nil {
			return err
		}
		return r.checkDisk(free, h.dir)
	}
	return nil
}

func (r *Rules) checkDisk(free uint64, name string) error {
	if free >= r.DiskReserve {
		return nil
	}
	return refuse(CodeHostDisk, "%s has %d MiB free, less than the daemon's reserve of %d; free some, or lower "+
		"--disk-reserve-mib", name, free>>20, r.DiskReserve>>20)
}

// Room returns an error if a VM that is not a sandbox would use a part of the memory reserve or of
// the disk reserve. The VM needs the given memory in bytes, and writes to the file system that
// contains the given file.
func (r *Rules) Room(memory uint64, disk *os.File) error {
	if err := r.RoomInMemory(memory); err != nil {
		return err
	}
	return r.RoomOnDisk(disk)
}

// RoomOnDisk returns an error if the file system that contains the given file has less free space
// than the reserve.
func (r *Rules) RoomOnDisk(disk *os.File) error { return r.RoomForFiles(disk, 0) }

// RoomForFiles is like RoomOnDisk, but for a caller that is about to write the given number of
// bytes. The reserve must still be free after that.
func (r *Rules) RoomForFiles(disk *os.File, bytes uint64) error {
	if r.DiskReserve == 0 && bytes == 0 {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(disk.Fd()), &st); err != nil {
		return fmt.Errorf("free space of %s: %w", disk.Name(), err)
	}
	free, name := st.Bavail*uint64(st.Bsize), "the file system of the daemon's state"
	if bytes > free {
		return refuse(CodeHostDisk, "%s has %d MiB free, and %d are needed; free some", name, free>>20, bytes>>20)
	}
	return r.checkDisk(free-bytes, name)
}

// RoomInMemory is like Rules.RoomInMemory, but checks a second time if killed VMs have given memory
// back.
func (h *Host) RoomInMemory(memory uint64) error {
	return h.again(func() error { return h.rules.RoomInMemory(memory) })
}

// RoomInMemory returns an error if a VM with this many bytes of memory might use a part of the
// memory reserve.
func (r *Rules) RoomInMemory(memory uint64) error {
	if r.MemoryReserve == 0 {
		return nil
	}
	free, err := memAvailable()
	if err != nil {
		return err
	}
	if need := r.MemoryReserve + memory; free < need {
		return refuse(CodeHostMemory, "the host has %d MiB of memory available, and a VM that boots wants %d MiB with the daemon's "+
			"reserve of %d; kill or suspend sandboxes, or lower --memory-reserve-mib", free>>20, need>>20,
			r.MemoryReserve>>20)
	}
	return nil
}

func refuse(code, format string, args ...any) error {
	return &Error{Code: code, Reason: fmt.Sprintf(format, args...)}
}

// askLocked reads the host's available memory. If the last reading is recent, askLocked does
// nothing.
//
// +checklocks:h.mu
func (h *Host) askLocked() error {
	if time.Since(h.asked) < askEvery {
		return nil
	}
	free, err := h.available()
	if err == nil {
		h.free, h.asked, h.since = free, time.Now(), 0
	}
	return err
}

// TakeOver counts a VM that an earlier daemon started.
func (h *Host) TakeOver(vcpus uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.vms, h.vcpus = h.vms+1, h.vcpus+int(vcpus)
}

// Started records that n VMs are no longer starting; see Enter.
func (h *Host) Started(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.starting -= n
}

// Leave frees the place of one VM.
func (h *Host) Leave(vcpus uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.vms, h.vcpus = h.vms-1, h.vcpus-int(vcpus)
}

// Leaver returns a function that frees the place of one VM. Calling that function again does
// nothing.
func (h *Host) Leaver(vcpus uint32) func() {
	return sync.OnceFunc(func() { h.Leave(vcpus) })
}

// memAvailable returns how much memory the host can provide without swapping, in bytes (proc(5),
// meminfo).
func memAvailable() (uint64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/meminfo does not name MemAvailable")
}
