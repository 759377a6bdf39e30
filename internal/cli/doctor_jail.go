package cli

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

// checkJails looks at what keeps a guest in that has found a flaw in its VMM.
func checkJails() []finding {
	return []finding{
		checkJail(tryJail(), os.Getuid() == 0, hostFile),
		checkSeccomp(hostFile("/proc/sys/kernel/seccomp/actions_avail")),
		checkLandlock(landlockVersion()),
		checkCores(hostFile("/sys/devices/system/cpu/smt/active"), hasCoreScheduling()),
		checkKSM(hostFile("/sys/kernel/mm/ksm/run")),
		checkCPUFlaws(cpuFlaws("/sys/devices/system/cpu/vulnerabilities"), hostFile("/proc/cpuinfo"),
			hostFile("/proc/cmdline")),
	}
}

// tryJail lets a VMM enter its jail.
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
	// see jail.Starter
	if err := errors.Join(os.WriteFile(path, program, 0o700), os.Chmod(path, 0o755), os.Chmod(dir, 0o711)); err != nil {
		return err
	}
	jails, err := jail.New(jail.Options{})
	if err != nil {
		return err
	}
	return jails.Try(path)
}

func checkJail(err error, root bool, read func(string) string) finding {
	const check = "jail"
	const without = "; forkd daemon --no-namespaces does without, and a guest that takes over its VMM is kept in by less"
	switch {
	case errors.Is(err, embedded.ErrNotBuiltIn):
		return found(check, skip, err.Error())
	case err != nil && root:
		return found(check, warn,
			"this host lets root make no namespaces, perhaps because it is a container: "+err.Error()+without).
			byHand("forkd daemon --no-namespaces")
	case err != nil:
		bad := found(check, warn, "this host gives users no namespaces: "+err.Error()+without)
		for _, s := range namespaceSettings() {
			if read("/proc/sys/"+strings.ReplaceAll(s.name, ".", "/")) == s.forbids {
				return bad.asRoot("sysctl -w " + s.name + "=" + s.allows)
			}
		}
		return bad.byHand("forkd daemon --no-namespaces")
	case !root:
		return found(check, pass,
			"complete; all VMMs are your user, and a VMM that is not from the pool takes some 5 ms longer "+
				"to start than with a daemon that is root")
	}
	return found(check, pass, "complete; every VMM has a user of its own")
}

// namespaceSettings are those by which distributions keep users from namespaces.
func namespaceSettings() []struct{ name, forbids, allows string } {
	return []struct{ name, forbids, allows string }{
		{"kernel.unprivileged_userns_clone", "0", "1"},             // Debian
		{"kernel.apparmor_restrict_unprivileged_userns", "1", "0"}, // Ubuntu
		{"user.max_user_namespaces", "0", "16384"},
	}
}

// checkSeccomp looks for the action by which a VMM dies that makes a forbidden call.
func checkSeccomp(actions string) finding {
	const check = "seccomp"
	if !slices.Contains(strings.Fields(actions), "kill_process") {
		return found(check, fail, "this kernel has no filters for system calls (CONFIG_SECCOMP_FILTER): no VMM starts").
			byHand("apt install linux-image-amd64 # then reboot")
	}
	return found(check, pass, "a forbidden system call ends its process")
}

// landlockVersion returns that of the kernel's interface, 0 if it has none.
func landlockVersion() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

func checkLandlock(version int) finding {
	const check = "landlock"
	if version == 0 {
		return found(check, warn,
			"not in this kernel, or not among its lsm=: a VMM's empty root directory and the filter of its "+
				"system calls have no third line behind them").
			byHand(bootWith("lsm=landlock,lockdown,yama,integrity,apparmor,bpf"))
	}
	return found(check, pass, "there")
}

// hasCoreScheduling asks for the cookie of this process, which changes nothing.
func hasCoreScheduling() bool {
	err := unix.Prctl(unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_GET, 0, unix.PR_SCHED_CORE_SCOPE_THREAD, 0)
	return err != unix.EINVAL // no cookie for want of a place to put it is EFAULT, or ENODEV without SMT
}

func checkCores(smt string, scheduling bool) finding {
	const check = "cores"
	switch {
	case smt != "1":
		return found(check, pass, "no sandbox shares a core with another one at the same time")
	case scheduling:
		return found(check, pass, "siblings of a core run the same sandbox or wait (core scheduling)")
	}
	return found(check, warn,
		"SMT is on and the kernel has no core scheduling: sandboxes can spy on each other through what the "+
			"siblings of a core share; use a kernel with CONFIG_SCHED_CORE, or switch SMT off, and with it half of the CPUs").
		byHand("echo off > /sys/devices/system/cpu/smt/control")
}

func checkKSM(run string) finding {
	const check = "ksm"
	if strings.TrimSpace(run) == "1" {
		return found(check, warn,
			"on: sandboxes can learn by timing which pages others have").asRoot("echo 2 > /sys/kernel/mm/ksm/run")
	}
	return found(check, pass, "off")
}

// cpuFlaws reads what the kernel says of known flaws of the CPU, by name.
func cpuFlaws(dir string) map[string]string {
	entries, _ := os.ReadDir(dir) // an old kernel has none
	flaws := map[string]string{}
	for _, e := range entries {
		flaws[e.Name()] = hostFile(filepath.Join(dir, e.Name()))
	}
	return flaws
}

// crossing are the flaws by which one guest, or a guest and the host, could read each other's
// memory. A process inside one guest is that guest's own business.
var crossing = []string{"gather_data_sampling", "indirect_target_selection", "itlb_multihit", "l1tf", "mds", "meltdown",
	"mmio_stale_data",
	"old_microcode", "reg_file_data_sampling", "retbleed", "spec_rstack_overflow", "spectre_v2", "srbds", "tsa",
	"tsx_async_abort", "vmscape"}

var microcodeOf = regexp.MustCompile(`(?m)^microcode\s*:\s*(\S+)`)

// weakened matches a kernel command line that asks for less than all mitigations: mitigations=off,
// or some left out, such as mitigations=auto,no_guest_host. mitigations=auto,nosmt asks for more.
var weakened = regexp.MustCompile(`\bmitigations=(off\b|\S*no_)`)

// checkCPUFlaws looks for flaws of the CPU that nothing is done about.
func checkCPUFlaws(flaws map[string]string, cpuinfo, cmdline string) finding {
	const check = "flaws of the CPU"
	if len(flaws) == 0 {
		return found(check, skip, "this kernel says nothing about them")
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
	switch detail := "guests could read what is not theirs: " + strings.Join(open, ", ") + "; microcode " + microcode; {
	case len(open) == 0:
		return found(check, pass, "all are mitigated; microcode "+microcode)
	case weakened.MatchString(cmdline):
		return found(check, warn,
			detail).byHand(`sed -i 's/mitigations=[^ "]*//' /etc/default/grub && update-grub # then reboot`)
	case isVM(cpuinfo):
		return found(check, warn, detail+"; this host is a virtual machine: the host around it loads the microcode")
	case old:
		return found(check, warn,
			detail).byHand("apt install intel-microcode amd64-microcode # from non-free-firmware; then reboot")
	default:
		return found(check, warn, detail).byHand("apt full-upgrade # to a kernel with the mitigations; then reboot")
	}
}
