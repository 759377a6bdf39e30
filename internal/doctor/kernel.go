package doctor

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Checks of how well the host's kernel supports many VMs. If a check fails, forkd still runs, but
// slower or with less space. Each failure names a fix.

// kernel reports features that older kernels lack.
func (h *Host) kernel() Finding {
	release := h.read("/proc/sys/kernel/osrelease")
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return skip("release %q is not understood", release)
	}
	before := func(a, b int) bool { return major < a || major == a && minor < b }
	switch {
	case before(6, 1):
		return warn("%s has no /dev/userfaultfd: every live branch copies memory while the sandbox is stopped (diff); "+
			"use 6.1 or later, better 6.7", release)
	case before(6, 7):
		return warn("%s finds written pages by reading /proc/PID/pagemap: branches stop large sandboxes for longer; "+
			"use 6.7 or later", release)
	}
	return pass(release)
}

// nxHugePages checks KVM's mitigation of iTLB multihit, a flaw of older Intel processors. The
// mitigation slows VMs down.
func (h *Host) nxHugePages() Finding {
	switch setting := h.read("/sys/module/kvm/parameters/nx_huge_pages"); setting {
	case "":
		return skip("KVM has no such setting here")
	case "Y", "1":
		return warn("on: KVM starts a thread for every VM, which makes forks slower by up to milliseconds; where all " +
			"guests are trusted or the CPU is not affected (itlb_multihit), switch it off")
	default:
		return pass(setting)
	}
}

// cgroup checks for the controllers that enforce limits of sandboxes.
func (h *Host) cgroup() Finding {
	const root, unified = "/sys/fs/cgroup", "systemd.unified_cgroup_hierarchy=1"
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		none := warn("not mounted at /sys/fs/cgroup: sandboxes have no limits")
		if err == nil && st.Type == unix.TMPFS_MAGIC { // cgroup v1 is mounted there
			return none.by(bootWith(unified))
		}
		return none.by(asRoot("mount -t cgroup2 none /sys/fs/cgroup"))
	}
	return h.controllers(root, bootWith(unified))
}

// delegateToUsers is a command that configures systemd: systemd then delegates to users all
// controllers that limits need.
const delegateToUsers = "mkdir -p /etc/systemd/system/user@.service.d && printf '[Service]\\nDelegate=cpu cpuset io memory pids\\n' > " +
	"/etc/systemd/system/user@.service.d/forkd.conf && systemctl daemon-reload"

// controllers checks the controllers that a daemon can use. The parameter dir is the mount point of
// cgroup v2. A daemon run by root can use all controllers. A daemon run by another user can use
// only the controllers that systemd has delegated to the user.
func (h *Host) controllers(dir string, rootsFix Fix) Finding {
	if !h.root {
		dir = path.Join(dir, h.ownCgroup())
	}
	have := strings.Fields(h.read(path.Join(dir, "cgroup.controllers")))
	missing := slices.DeleteFunc([]string{"cpu", "io", "memory", "pids"},
		func(c string) bool { return slices.Contains(have, c) })
	switch {
	case len(missing) == 0:
		return pass("%s: %s", dir, strings.Join(have, " "))
	case h.root:
		return warn("no controller %s: the kernel lacks it, or cgroup v1 has it; such limits are refused",
			strings.Join(missing, ", ")).by(rootsFix)
	}
	return warn("your user has no controller %s in %s: such limits are refused; log in again afterwards",
		strings.Join(missing, ", "), dir).by(asRoot(delegateToUsers))
}

// ownCgroup returns the path of this process in cgroup v2; empty if the process is in no cgroup.
func (h *Host) ownCgroup() string {
	_, at, _ := strings.Cut("\n"+h.read("/proc/self/cgroup"), "\n0::")
	at, _, _ = strings.Cut(at, "\n")
	return at
}

// cgroupMount checks for the mount option that makes it fast to move processes between cgroups.
func (h *Host) cgroupMount() Finding {
	for line := range strings.Lines(h.read("/proc/self/mounts")) {
		f := strings.Fields(line)
		if len(f) < 4 || f[2] != "cgroup2" {
			continue
		}
		if slices.Contains(strings.Split(f[3], ","), "favordynmods") {
			return pass(f[1])
		}
		return warn("off: starting a VMM in a cgroup waits for all CPUs, up to milliseconds").
			by(asRoot("mount -o remount,favordynmods " + quoted(f[1])))
	}
	return skip("no cgroup v2 is mounted")
}

const (
	threadsPerVM = 10  // approximate number of a VMM's threads, including KVM's
	enoughVMs    = 500 // number of VMs for which limits should suffice
)

// pidsLeft returns the number of threads that the cgroups of this process still permit.
func (h *Host) pidsLeft() uint64 {
	left := uint64(math.MaxUint64)
	at := h.ownCgroup()
	if at == "" {
		return left
	}
	for dir := path.Clean(at); ; dir = path.Dir(dir) {
		limit, err := strconv.ParseUint(h.read("/sys/fs/cgroup"+dir+"/pids.max"), 10, 64)
		if err == nil { // if this fails, the file is missing or contains "max"
			used, _ := strconv.ParseUint(h.read("/sys/fs/cgroup"+dir+"/pids.current"), 10, 64)
			left = min(left, limit-min(limit, used))
		}
		if dir == "/" || dir == "." {
			return left
		}
	}
}

func (h *Host) threads() Finding {
	var nproc unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &nproc); err != nil || h.root { // the limit does not apply to root
		nproc.Cur = unix.RLIM_INFINITY
	}
	return judgeThreads(h.pidsLeft(), nproc.Cur)
}

// judgeThreads compares the limits on threads with the number of threads that many VMs need.
func judgeThreads(pids, nproc uint64) Finding {
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
		return warn(strings.Join(low, "; ")).by(byHand(raise[0]))
	}
	return pass("room for %d sandboxes and more", enoughVMs)
}

// overcommit checks the setting vm.overcommit_memory, which determines how the kernel accounts for
// mapped memory.
func (h *Host) overcommit() Finding {
	switch mode := h.read("/proc/sys/vm/overcommit_memory"); mode {
	case "2":
		return warn("2: the kernel counts the whole memory of every sandbox, not what it has written, and refuses " +
			"forks long before memory is short: sysctl vm.overcommit_memory=1")
	case "":
		return skip("not readable")
	default:
		return pass(mode)
	}
}

// mostMaps bounds the number of memory mappings of a VMM. A snapshot's memory has at most 32768
// extents (internal/format/snapshot). Each extent is a mapping. The VMM has several hundred
// mappings of its own.
const mostMaps = 32768 + 1000

func (h *Host) maps() Finding {
	limit := h.read("/proc/sys/vm/max_map_count")
	n, err := strconv.ParseUint(limit, 10, 64)
	switch {
	case err != nil:
		return skip("not readable")
	case n < mostMaps:
		return warn("%d: if a sandbox has written all over its memory, forks of its branches may fail", n)
	}
	return pass(limit)
}

// meminfo returns the numbers in /proc/meminfo. They are in KiB, except for lines without a unit,
// which count pages.
func (h *Host) meminfo() map[string]uint64 {
	fields := map[string]uint64{}
	for line := range strings.Lines(h.read("/proc/meminfo")) {
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

// enoughMemory, in MiB, is enough for a few sandboxes of 512 MiB that write half of their memory.
const enoughMemory = 1024

func (h *Host) memory() Finding {
	kib := h.meminfo()
	free, ok := kib["MemAvailable"]
	detail := fmt.Sprintf("%d MiB available of %d MiB", free>>10, kib["MemTotal"]>>10)
	switch {
	case !ok:
		return skip("/proc/meminfo is not readable")
	case free>>10 < enoughMemory:
		return warn(detail + ": forks are refused while less than the daemon's reserve would be left")
	}
	return pass(detail)
}

// swap reports whether the kernel can swap out unused memory of sandboxes. The check passes even if
// the kernel cannot.
func (h *Host) swap() Finding {
	kib := h.meminfo()
	total, ok := kib["SwapTotal"]
	switch {
	case !ok:
		return skip("/proc/meminfo is not readable")
	case total == 0:
		return pass("none: idle sandboxes stay in memory, and if memory runs out, the kernel kills some")
	}
	return pass("%d MiB free of %d MiB: what sandboxes keep in memory may be written there", kib["SwapFree"]>>10,
		total>>10)
}

// muchReserved, in MiB, is the smallest amount of reserved memory that causes a warning.
const muchReserved = 256

// hugePages reports memory reserved for huge pages. forkd does not use huge pages, because a child
// that writes one byte would have to copy 2 MiB. For the same reason, forkd disables transparent
// huge pages for guests, whatever the host's setting is.
func (h *Host) hugePages() Finding {
	kib := h.meminfo()
	free := kib["HugePages_Free"] * kib["Hugepagesize"] >> 10
	if free >= muchReserved {
		return warn("%d MiB are reserved for huge pages and unused; forkd uses none", free)
	}
	_, mode, _ := strings.Cut(h.read("/sys/kernel/mm/transparent_hugepage/enabled"), "[")
	mode, _, _ = strings.Cut(mode, "]")
	if mode == "" {
		mode = "not there"
	}
	return pass("none reserved; transparent ones: " + mode + ", and off in guests in any case")
}
