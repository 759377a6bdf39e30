package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/jail"
)

// Checks of the jail, which confines a guest that has taken over its VMM.

func (h *Host) jail() Finding { return h.judgeJail(tryJail()) }

// tryJail tests whether a VMM can enter its jail.
func tryJail() error {
	program, err := embedded.Open(embedded.VMM)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "forkd-doctor")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, embedded.VMM)
	// jail.Starter needs these permissions
	if err := errors.Join(os.WriteFile(path, program, 0o700), os.Chmod(path, 0o755), os.Chmod(dir, 0o711)); err != nil {
		return err
	}
	jails, err := jail.New(jail.Options{})
	if err != nil {
		return err
	}
	return jails.Try(path)
}

func (h *Host) judgeJail(err error) Finding {
	const without = "; 'forkd daemon --no-namespaces' needs none, but confines a guest that takes over its VMM less"
	switch {
	case errors.Is(err, embedded.ErrNotBuiltIn):
		return skip(err.Error())
	case err != nil && h.root:
		return warn("this host lets root make no namespaces, perhaps because it is a container: " + err.Error() + without)
	case err != nil:
		bad := warn("this host gives users no namespaces: " + err.Error() + without)
		for _, s := range namespaceSettings() {
			if h.read("/proc/sys/"+strings.ReplaceAll(s.name, ".", "/")) == s.forbids {
				return bad.by(asRoot("sysctl -w " + s.name + "=" + s.allows))
			}
		}
		return bad
	case !h.root:
		return pass("complete; all VMMs run as your user, and a VMM that is not from the pool takes some 5 ms longer to " +
			"start than with a daemon that runs as root")
	}
	return pass("complete; every VMM has a user of its own")
}

// namespaceSettings are the settings with which distributions forbid ordinary users to create
// namespaces.
func namespaceSettings() []struct{ name, forbids, allows string } {
	return []struct{ name, forbids, allows string }{
		{"kernel.unprivileged_userns_clone", "0", "1"},             // Debian
		{"kernel.apparmor_restrict_unprivileged_userns", "1", "0"}, // Ubuntu
		{"user.max_user_namespaces", "0", "16384"},
	}
}

// seccomp checks that the kernel can kill a VMM that makes a forbidden system call.
func (h *Host) seccomp() Finding {
	if !slices.Contains(strings.Fields(h.read("/proc/sys/kernel/seccomp/actions_avail")), "kill_process") {
		return fail("this kernel has no filters for system calls (CONFIG_SECCOMP_FILTER): no VMM starts")
	}
	return pass("a forbidden system call kills its process")
}

func (h *Host) landlock() Finding {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	return judgeLandlock(errno == 0 && version > 0)
}

func judgeLandlock(there bool) Finding {
	if !there {
		return warn("not in this kernel, or not in its parameter lsm=: VMMs lack this third barrier, behind their empty root " +
			"directory and the filter of their system calls")
	}
	return pass("there")
}

// cores checks for core scheduling. It asks the kernel for this process's cookie. This request
// changes nothing.
func (h *Host) cores() Finding {
	err := unix.Prctl(unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_GET, 0, unix.PR_SCHED_CORE_SCOPE_THREAD, 0)
	// The call passes no buffer for the cookie. So it fails with EFAULT, or with ENODEV if the host
	// has no SMT. EINVAL means that the kernel lacks core scheduling.
	return judgeCores(h.read("/sys/devices/system/cpu/smt/active"), err != unix.EINVAL)
}

func judgeCores(smt string, scheduling bool) Finding {
	switch {
	case smt != "1":
		return pass("no sandbox shares a core with another one at the same time")
	case scheduling:
		return pass("siblings of a core run the same sandbox or wait (core scheduling)")
	}
	return warn("SMT is on and the kernel has no core scheduling: sandboxes can spy on each other through what the " +
		"siblings of a core share; use a kernel with CONFIG_SCHED_CORE, or switch SMT off, and with it half of the CPUs")
}

func (h *Host) ksm() Finding {
	if h.read("/sys/kernel/mm/ksm/run") == "1" {
		return warn("on: sandboxes can learn by timing which pages others have")
	}
	return pass("off")
}

func (h *Host) cpuFlaws() Finding {
	const dir = "/sys/devices/system/cpu/vulnerabilities"
	entries, _ := os.ReadDir(dir) // empty on an old kernel
	flaws := map[string]string{}
	for _, e := range entries {
		flaws[e.Name()] = h.read(filepath.Join(dir, e.Name()))
	}
	return judgeCPUFlaws(flaws, h.read("/proc/cpuinfo"), h.read("/proc/cmdline"))
}

// crossing lists CPU flaws that could let one guest read the memory of another guest or of the
// host. Flaws that affect only processes inside one guest are not listed.
var crossing = []string{"gather_data_sampling", "indirect_target_selection", "itlb_multihit", "l1tf", "mds", "meltdown",
	"mmio_stale_data", "old_microcode", "reg_file_data_sampling", "retbleed", "spec_rstack_overflow", "spectre_v2",
	"srbds", "tsa", "tsx_async_abort", "vmscape"}

var microcodeOf = regexp.MustCompile(`(?m)^microcode\s*:\s*(\S+)`)

// weakened matches a kernel command line that disables mitigations: mitigations=off, or a form such
// as mitigations=auto,no_guest_host, which disables some mitigations. It does not match
// mitigations=auto,nosmt, which enables more mitigations.
var weakened = regexp.MustCompile(`\bmitigations=(off\b|\S*no_)`)

// judgeCPUFlaws reports flaws of the CPU that the kernel does not mitigate. The given map has the
// kernel's text for each flaw.
func judgeCPUFlaws(flaws map[string]string, cpuinfo, cmdline string) Finding {
	if len(flaws) == 0 {
		return skip("this kernel does not report them")
	}
	microcode := "unknown"
	if m := microcodeOf.FindStringSubmatch(cpuinfo); m != nil {
		microcode = m[1]
	}
	var open []string
	old := false
	for _, name := range crossing {
		if text := flaws[name]; strings.HasPrefix(text, "Vulnerable") || strings.HasPrefix(text, "KVM: Vulnerable") {
			open = append(open, name+" ("+text+")")
			old = old || strings.Contains(text, "icrocode")
		}
	}
	bad := warn("guests could read data that is not theirs: %s; microcode %s", strings.Join(open, ", "), microcode)
	switch {
	case len(open) == 0:
		return pass("all are mitigated; microcode " + microcode)
	case weakened.MatchString(cmdline):
		return bad.by(byHand(`sed -i 's/mitigations=[^ "]*//' /etc/default/grub && update-grub # then reboot`))
	case isVM(cpuinfo):
		bad.Detail += "; this host is a virtual machine: the host around it loads the microcode"
		return bad
	case old:
		return bad.by(byHand("apt install intel-microcode amd64-microcode # from non-free-firmware; then reboot"))
	}
	return bad.by(byHand("apt full-upgrade # to a kernel with the mitigations; then reboot"))
}
