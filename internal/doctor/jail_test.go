package doctor

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDoctorKnowsWhatKeepsGuestsIn(t *testing.T) {
	refused := errors.New("operation not permitted")
	jail := func(err error, root bool, files ...string) Finding {
		h := with(files...)
		h.root = root
		return h.do([]check{{"jail", func(h *Host) Finding { return h.judgeJail(err) }, nil}})[0]
	}
	const debian = "/proc/sys/kernel/unprivileged_userns_clone"
	flaws := func(pairs ...string) map[string]string {
		// Spectre_v1 affects only processes inside one guest.
		m := map[string]string{"spectre_v1": "Vulnerable", "mds": "Not affected"}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	const cpuinfo = "flags\t\t: fpu vmx sse\nmicrocode\t: 0x2b\n"
	const inVM = "flags\t\t: fpu vmx hypervisor sse\nmicrocode\t: 0x2b\n"
	for _, c := range []struct {
		name    string
		got     Finding
		verdict Verdict
		detail  string // part of the detail, or of the fix's command
	}{
		{"root", jail(nil, true), Pass, "a user of its own"},
		{"a user", jail(nil, false), Pass, "your user"},
		{"root in a container", jail(refused, true), Warn, "--no-namespaces"},
		{"a user without namespaces", jail(refused, false, debian, "0"), Warn,
			"sysctl -w kernel.unprivileged_userns_clone=1"},
		{"a user of a container", jail(refused, false), Warn, "--no-namespaces"},
		{"seccomp", with("/proc/sys/kernel/seccomp/actions_avail", "kill_process kill_thread errno").check(t, "seccomp"),
			Pass, ""},
		{"no seccomp", with("/proc/sys/kernel/seccomp/actions_avail", "").check(t, "seccomp"),
			Fail, "CONFIG_SECCOMP_FILTER"},
		{"no flaws", judgeCPUFlaws(flaws(), cpuinfo, ""), Pass, "0x2b"},
		{"nothing known", judgeCPUFlaws(nil, cpuinfo, ""), Skip, ""},
		{"old microcode", judgeCPUFlaws(flaws("mds", "Vulnerable: Clear CPU buffers attempted, no microcode"), cpuinfo, ""),
			Warn, "apt install intel-microcode"},
		{"an old kernel", judgeCPUFlaws(flaws("vmscape", "Vulnerable"), cpuinfo, ""), Warn, "vmscape (Vulnerable)"},
		{"switched off", judgeCPUFlaws(flaws("mds", "Vulnerable"), cpuinfo, "quiet mitigations=off"),
			Warn, "s/mitigations="},
		{"some left out", judgeCPUFlaws(flaws("vmscape", "Vulnerable"), cpuinfo, "mitigations=auto,no_guest_host"), Warn,
			"s/mitigations="},
		{"asked for in full", judgeCPUFlaws(flaws("vmscape", "Vulnerable"), cpuinfo, "mitigations=auto,nosmt"), Warn,
			"full-upgrade"},
		{"in a VM", judgeCPUFlaws(flaws("mds", "Vulnerable; SMT Host state unknown"), inVM, ""), Warn, "around it"},
		{"no landlock", judgeLandlock(false), Warn, "lsm="},
		{"landlock", judgeLandlock(true), Pass, ""},
		{"FUSE", judgeFUSE(nil), Pass, "before all of it"},
		{"no FUSE", judgeFUSE(unix.ENOENT), Warn, "modprobe fuse"},
		{"FUSE in a container", judgeFUSE(unix.EPERM), Warn, "--device /dev/fuse"},
		{"no SMT", judgeCores("0", false), Pass, ""},
		{"no cores known", judgeCores("", false), Pass, ""},
		{"core scheduling", judgeCores("1", true), Pass, "core scheduling"},
		{"shared cores", judgeCores("1", false), Warn, "CONFIG_SCHED_CORE"},
		{"ksm", with("/sys/kernel/mm/ksm/run", "1").check(t, "ksm"), Warn, "ksm/run"},
		{"no ksm", with("/sys/kernel/mm/ksm/run", "0").check(t, "ksm"), Pass, "off"},
	} {
		if c.got.Verdict != c.verdict || !strings.Contains(everything(c.got), c.detail) {
			t.Errorf("%s: %+v, want %s with %q", c.name, c.got, c.verdict, c.detail)
		}
	}
}
