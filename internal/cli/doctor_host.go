package cli

import (
	"fmt"
	"math"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// These checks are of what the host's kernel does with many VMs. None of them keeps forkd from
// running: each costs time or room, and says how to get it back.

// hostFile reads a small file of /proc or /sys; empty if there is none.
func hostFile(name string) string {
	p, _ := os.ReadFile(name)
	return strings.TrimSpace(string(p))
}

// checkHost returns the findings about the host's kernel and its settings.
func checkHost() []finding {
	var u unix.Utsname
	_ = unix.Uname(&u)
	var nproc unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &nproc); err != nil || os.Getuid() == 0 { // it does not bind root
		nproc.Cur = unix.RLIM_INFINITY
	}
	return []finding{
		checkKernel(unix.ByteSliceToString(u.Release[:])),
		checkNXHugePages(hostFile("/sys/module/kvm/parameters/nx_huge_pages")),
		checkCgroupMount(hostFile("/proc/self/mounts")),
		checkThreads(pidsLeft(hostFile("/proc/self/cgroup"), hostFile), nproc.Cur),
		checkOvercommit(hostFile("/proc/sys/vm/overcommit_memory")),
	}
}

// checkKernel knows what older kernels lack.
func checkKernel(release string) finding {
	const check = "kernel"
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return finding{check, skip, fmt.Sprintf("release %q is not understood", release)}
	}
	before := func(a, b int) bool { return major < a || major == a && minor < b }
	switch {
	case before(6, 1):
		return finding{check, warn, release + " has no /dev/userfaultfd: every live branch copies memory while the sandbox is " +
			"stopped (diff); use 6.1 or later, better 6.7"}
	case before(6, 7):
		return finding{check, warn, release + " finds written pages by reading /proc/PID/pagemap: branches stop large sandboxes " +
			"for longer; use 6.7 or later"}
	}
	return finding{check, pass, release}
}

// checkNXHugePages looks at KVM's mitigation of iTLB multihit, a weakness of older Intel
// processors.
func checkNXHugePages(setting string) finding {
	const check = "kvm.nx_huge_pages"
	switch setting {
	case "":
		return finding{check, skip, "KVM has no such setting here"}
	case "Y", "1":
		return finding{check, warn, "on: KVM starts a thread for every VM, which makes forks slower by up to milliseconds; where all " +
			"guests are trusted or the CPU is not affected (itlb_multihit), load kvm with nx_huge_pages=never"}
	}
	return finding{check, pass, setting}
}

// checkCgroupMount looks for the mount option that makes moving processes between cgroups fast.
func checkCgroupMount(mounts string) finding {
	const check = "cgroup favordynmods"
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		if len(f) < 4 || f[2] != "cgroup2" {
			continue
		}
		for option := range strings.SplitSeq(f[3], ",") {
			if option == "favordynmods" {
				return finding{check, pass, f[1]}
			}
		}
		return finding{check, warn, fmt.Sprintf("off: starting a VMM in a cgroup waits for all CPUs, up to milliseconds: "+
			"mount -o remount,favordynmods %s", f[1])}
	}
	return finding{check, skip, "no cgroup v2 is mounted"}
}

// A VMM has about this many threads, KVM's own included.
const threadsPerVM = 10

// enoughVMs is for how many VMs there shall be room.
const enoughVMs = 500

// pidsLeft returns how many more threads the cgroups of this process allow, from /proc/self/cgroup.
func pidsLeft(self string, read func(string) string) uint64 {
	left := uint64(math.MaxUint64)
	_, at, ok := strings.Cut(self, "0::") // of cgroup v2
	if !ok {
		return left
	}
	at, _, _ = strings.Cut(at, "\n")
	for dir := path.Clean(at); ; dir = path.Dir(dir) {
		limit, err := strconv.ParseUint(read("/sys/fs/cgroup"+dir+"/pids.max"), 10, 64)
		if err == nil { // else there is none, or it is "max"
			used, _ := strconv.ParseUint(read("/sys/fs/cgroup"+dir+"/pids.current"), 10, 64)
			left = min(left, limit-min(limit, used))
		}
		if dir == "/" || dir == "." {
			return left
		}
	}
}

// checkThreads compares the limits on threads with what many VMs need.
func checkThreads(pids, nproc uint64) finding {
	const check = "threads"
	var low []string
	for _, l := range []struct {
		left     uint64
		name, do string
	}{
		{pids, "pids.max of the cgroup", "raise it (systemd: TasksMax=)"},
		{nproc, "RLIMIT_NPROC of the user", "raise it (ulimit -u; systemd: LimitNPROC=)"},
	} {
		if l.left < threadsPerVM*enoughVMs {
			low = append(low, fmt.Sprintf("%s allows %d, which is enough for about %d sandboxes: %s",
				l.name, l.left, l.left/threadsPerVM, l.do))
		}
	}
	if len(low) > 0 {
		return finding{check, warn, strings.Join(low, "; ")}
	}
	return finding{check, pass, fmt.Sprintf("room for %d sandboxes and more", enoughVMs)}
}

// checkOvercommit looks at the mode in which the kernel counts all memory that is mapped.
func checkOvercommit(mode string) finding {
	const check = "vm.overcommit_memory"
	switch mode {
	case "2":
		return finding{check, warn, "2: the kernel counts the whole memory of every sandbox, not what it has written, and refuses " +
			"forks long before memory is short: sysctl vm.overcommit_memory=1"}
	case "":
		return finding{check, skip, "not readable"}
	}
	return finding{check, pass, mode}
}
