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
		checkMaps(hostFile("/proc/sys/vm/max_map_count")),
		checkMemory(memoryOf(hostFile("/proc/meminfo"))),
		checkSwap(memoryOf(hostFile("/proc/meminfo"))),
		checkHugePages(memoryOf(hostFile("/proc/meminfo")), hostFile("/sys/kernel/mm/transparent_hugepage/enabled")),
	}
}

// checkKernel knows what older kernels lack.
func checkKernel(release string) finding {
	const check = "kernel"
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return found(check, skip, fmt.Sprintf("release %q is not understood", release))
	}
	before := func(a, b int) bool { return major < a || major == a && minor < b }
	const install = "apt install linux-image-amd64 # of trixie or bookworm-backports; then reboot"
	switch {
	case before(6, 1):
		return found(check, warn, release+" has no /dev/userfaultfd: every live branch copies memory while the sandbox is "+
			"stopped (diff); use 6.1 or later, better 6.7").byHand(install)
	case before(6, 7):
		return found(check, warn, release+" finds written pages by reading /proc/PID/pagemap: branches stop large sandboxes "+
			"for longer; use 6.7 or later").byHand(install)
	}
	return found(check, pass, release)
}

// checkNXHugePages looks at KVM's mitigation of iTLB multihit, a weakness of older Intel
// processors.
func checkNXHugePages(setting string) finding {
	const check = "kvm.nx_huge_pages"
	switch setting {
	case "":
		return found(check, skip, "KVM has no such setting here")
	case "Y", "1":
		return found(check, warn,
			"on: KVM starts a thread for every VM, which makes forks slower by up to milliseconds; where all "+
				"guests are trusted or the CPU is not affected (itlb_multihit), switch it off").
			byHand("echo options kvm nx_huge_pages=never > /etc/modprobe.d/forkd.conf # then reboot")
	}
	return found(check, pass, setting)
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
				return found(check, pass, f[1])
			}
		}
		return found(check, warn, "off: starting a VMM in a cgroup waits for all CPUs, up to milliseconds").
			asRoot("mount -o remount,favordynmods " + quoted(f[1]))
	}
	return found(check, skip, "no cgroup v2 is mounted")
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
	var low, raise []string
	for _, l := range []struct {
		left     uint64
		name, do string
	}{
		{pids, "pids.max of the cgroup", "systemctl set-property forkd TasksMax=infinity # or of the unit you start it in"},
		{nproc, "RLIMIT_NPROC of the user", "ulimit -u unlimited # systemd: LimitNPROC="},
	} {
		if l.left < threadsPerVM*enoughVMs {
			low = append(low, fmt.Sprintf("%s allows %d, which is enough for about %d sandboxes", l.name, l.left,
				l.left/threadsPerVM))
			raise = append(raise, l.do)
		}
	}
	if len(low) > 0 {
		return found(check, warn, strings.Join(low, "; ")).byHand(raise[0])
	}
	return found(check, pass, fmt.Sprintf("room for %d sandboxes and more", enoughVMs))
}

// checkOvercommit looks at the mode in which the kernel counts all memory that is mapped.
func checkOvercommit(mode string) finding {
	const check = "vm.overcommit_memory"
	switch mode {
	case "2":
		return found(check, warn,
			"2: the kernel counts the whole memory of every sandbox, not what it has written, and refuses "+
				"forks long before memory is short: sysctl vm.overcommit_memory=1")
	case "":
		return found(check, skip, "not readable")
	}
	return found(check, pass, mode)
}

// mostMaps is how many mappings a VMM may have: at most 32768 extents of a snapshot's memory
// (internal/format/snapshot), each a mapping, and some hundred of its own.
const mostMaps = 32768 + 1000

func checkMaps(limit string) finding {
	const check = "vm.max_map_count"
	n, err := strconv.ParseUint(limit, 10, 64)
	switch {
	case err != nil:
		return found(check, skip, "not readable")
	case n < mostMaps:
		return found(check, warn,
			fmt.Sprintf("%d: branches of sandboxes that write all over their memory may not be forked from", n)).
			asRoot("sysctl -w vm.max_map_count=65530")
	}
	return found(check, pass, limit)
}

// memoryOf reads /proc/meminfo, in KiB, and numbers of pages without a unit.
func memoryOf(meminfo string) map[string]uint64 {
	fields := map[string]uint64{}
	for line := range strings.Lines(meminfo) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		if n, err := strconv.ParseUint(f[1], 10, 64); err == nil {
			fields[strings.TrimSuffix(f[0], ":")] = n
		}
	}
	return fields
}

// enoughMemory, in MiB, is what a few sandboxes of 512 MiB want that write half of theirs.
const enoughMemory = 1024

func checkMemory(kib map[string]uint64) finding {
	const check = "memory"
	free, ok := kib["MemAvailable"]
	detail := fmt.Sprintf("%d MiB available of %d MiB", free>>10, kib["MemTotal"]>>10)
	switch {
	case !ok:
		return found(check, skip, "/proc/meminfo is not readable")
	case free>>10 < enoughMemory:
		return found(check, warn, detail+": forks are refused while less than the daemon's reserve would be left").
			byHand("forkd top --once # and 'forkd suspend ID' what can wait")
	}
	return found(check, pass, detail)
}

// checkSwap says what becomes of memory that sandboxes do not use. Neither answer is wrong.
func checkSwap(kib map[string]uint64) finding {
	const check = "swap"
	total, ok := kib["SwapTotal"]
	switch {
	case !ok:
		return found(check, skip, "/proc/meminfo is not readable")
	case total == 0:
		return found(check, pass, "none: memory of idle sandboxes stays, and when it is short, the kernel ends some")
	}
	return found(check, pass, fmt.Sprintf("%d MiB free of %d MiB: what sandboxes keep in memory may be written there",
		kib["SwapFree"]>>10, total>>10))
}

// muchReserved, in MiB, is more than one keeps by mistake and does not miss.
const muchReserved = 256

// checkHugePages looks for memory that is kept for huge pages, which forkd does not use: a child
// that writes one byte would copy 2 MiB. For the same reason it switches transparent ones off for
// guests, whatever the host has.
func checkHugePages(meminfo map[string]uint64, transparent string) finding {
	const check = "huge pages"
	free := meminfo["HugePages_Free"] * meminfo["Hugepagesize"] >> 10
	if free >= muchReserved {
		return found(check, warn, fmt.Sprintf("%d MiB are reserved for huge pages and unused; forkd uses none", free)).
			asRoot("sysctl -w vm.nr_hugepages=0")
	}
	_, mode, _ := strings.Cut(transparent, "[")
	mode, _, _ = strings.Cut(mode, "]")
	if mode == "" {
		mode = "not there"
	}
	return found(check, pass, "none reserved; transparent ones: "+mode+", and off in guests in any case")
}
