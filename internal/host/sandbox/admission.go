package sandbox

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
)

// Admission says how many sandboxes a host takes. A zero field is no limit.
type Admission struct {
	MaxSandboxes  int     // that have a VM
	VCPUsPerCPU   float64 // of all their VMs together
	MemoryReserve uint64  // bytes of the host's memory that stay available
	DiskReserve   uint64  // bytes that stay free where private disk tops are
}

// startBytes is what a VM is reckoned to take while it starts, until the host's own figures show
// it: a child writes about 1 MiB until it has confirmed, its VMM and KVM have as much each.
const startBytes = 4 << 20

// Codes of an AdmissionError, as the API spells them.
const (
	CodeMaxSandboxes = "max_sandboxes"
	CodeMaxVCPUs     = "max_vcpus"
	CodeHostMemory   = "host_memory"
	CodeHostDisk     = "host_disk"
	CodeOwnSandboxes = "own_sandboxes" // see OwnedBy
)

// AdmissionError reports VMs that were not started, because the host has no room for them.
type AdmissionError struct {
	Code   string
	Reason string
}

func (e *AdmissionError) Error() string { return "not admitted: " + e.Reason }

// admission counts the VMs of a manager's sandboxes. Those that are on their way count like the
// others, so that two requests cannot both take the last room.
type admission struct {
	rules     Admission
	dir       string                 // whose file system has DiskReserve
	available func() (uint64, error) // memory of the host, bytes
	room      func(dir string) (free uint64, _ error)

	mu       sync.Mutex
	vms      int
	vcpus    int
	starting int       // of vms
	free     uint64    // what available said
	asked    time.Time // when it was asked
	since    int       // VMs that entered after that
}

// askEvery is how old the host's figure of available memory may be. The kernel takes tens of
// microseconds to make it up, which is much for a fork.
const askEvery = 100 * time.Millisecond

func newAdmission(rules Admission, dir string) *admission {
	return &admission{rules: rules, dir: dir, available: memAvailable, room: freeBytes}
}

// enter takes places for n VMs, for all or none. Each is left by leave; when all have started or
// failed, started is called once with the same n.
func (a *admission) enter(n int, vcpus uint32) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.checkLocked(n, vcpus); err != nil {
		return err
	}
	a.vms, a.vcpus, a.starting, a.since = a.vms+n, a.vcpus+n*int(vcpus), a.starting+n, a.since+n
	return nil
}

// check says what enter would.
func (a *admission) check(n int, vcpus uint32) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.checkLocked(n, vcpus)
}

func (a *admission) checkLocked(n int, vcpus uint32) error {
	refuse := func(code, format string, args ...any) error {
		return &AdmissionError{Code: code, Reason: fmt.Sprintf(format, args...)}
	}
	r := &a.rules
	if r.MaxSandboxes > 0 && a.vms+n > r.MaxSandboxes {
		return refuse(CodeMaxSandboxes,
			"%d more would exceed the maximum of %d sandboxes, of which %d run or are paused; kill or "+
				"suspend some, or raise the daemon's --max-sandboxes", n, r.MaxSandboxes, a.vms)
	}
	most := int(r.VCPUsPerCPU * float64(runtime.NumCPU()))
	if r.VCPUsPerCPU > 0 && a.vcpus+n*int(vcpus) > most {
		return refuse(CodeMaxVCPUs,
			"%d more vCPUs would exceed the maximum of %d, of which %d are taken; kill or suspend sandboxes, "+
				"or raise the daemon's --vcpu-overcommit", n*int(vcpus), most, a.vcpus)
	}
	if r.MemoryReserve > 0 {
		if err := a.askLocked(); err != nil {
			return err
		}
		if need := r.MemoryReserve + uint64(max(a.starting, a.since)+n)*startBytes; a.free < need {
			return refuse(CodeHostMemory, "the host has %d MiB of memory available, and %d more sandboxes want %d MiB with the "+
				"daemon's reserve of %d; kill or suspend some, or lower --memory-reserve-mib",
				a.free>>20, n, need>>20, r.MemoryReserve>>20)
		}
	}
	if r.DiskReserve > 0 {
		free, err := a.room(a.dir)
		if err != nil {
			return err
		}
		if free < r.DiskReserve {
			return refuse(CodeHostDisk, "%s has %d MiB free, less than the daemon's reserve of %d; free some, or lower "+
				"--disk-reserve-mib", a.dir, free>>20, r.DiskReserve>>20)
		}
	}
	return nil
}

// askLocked looks at the host's memory, unless that was done just now.
func (a *admission) askLocked() error {
	if time.Since(a.asked) < askEvery {
		return nil
	}
	free, err := a.available()
	if err == nil {
		a.free, a.asked, a.since = free, time.Now(), 0
	}
	return err
}

// takeOver counts a VM that an earlier daemon started.
func (a *admission) takeOver(vcpus uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.vms, a.vcpus = a.vms+1, a.vcpus+int(vcpus)
}

// started: see enter.
func (a *admission) started(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.starting -= n
}

// leave gives back the place of one VM.
func (a *admission) leave(vcpus uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.vms, a.vcpus = a.vms-1, a.vcpus-int(vcpus)
}

// leaver returns how the place of one VM is given back, however often it is called.
func (a *admission) leaver(vcpus uint32) func() {
	return sync.OnceFunc(func() { a.leave(vcpus) })
}

// admit takes places for n VMs, and counts what it refuses. Where memory is short for one more, VMs
// that wait for forks have to go before sandboxes of users have to.
func (m *Manager) admit(n int, vcpus uint32) error {
	err := m.admitted.enter(n, vcpus)
	var refused *AdmissionError
	if errors.As(err, &refused) {
		m.cfg.Observer.Refused(refused.Code)
		if refused.Code == CodeHostMemory && m.admitted.check(1, vcpus) != nil {
			m.pool.Forget()
		}
	}
	return err
}

// givePlaces gives each child of a fork its place, and gives back those of children that did not
// start.
func (m *Manager) givePlaces(children []*Sandbox, vcpus uint32) {
	for _, s := range children {
		if s == nil {
			m.admitted.leave(vcpus)
		} else {
			s.live.leave = m.admitted.leaver(vcpus)
		}
	}
}

// memAvailable returns how much memory the host can give without swapping (proc(5), meminfo).
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
