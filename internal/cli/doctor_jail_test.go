package cli

import (
	"errors"
	"strings"
	"testing"
)

func TestDoctorKnowsWhatKeepsGuestsIn(t *testing.T) {
	refused := errors.New("operation not permitted")
	none := func(string) string { return "" }
	debian := func(name string) string {
		return map[string]string{"/proc/sys/kernel/unprivileged_userns_clone": "0"}[name]
	}
	flaws := func(pairs ...string) map[string]string {
		m := map[string]string{"spectre_v1": "Vulnerable", "mds": "Not affected"} // the former is within a guest
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	const cpuinfo = "flags\t\t: fpu vmx sse\nmicrocode\t: 0x2b\n"
	const inVM = "flags\t\t: fpu vmx hypervisor sse\nmicrocode\t: 0x2b\n"
	for _, c := range []struct {
		name    string
		got     finding
		verdict verdict
		detail  string // part of it, or of the command that mends it
	}{
		{"root", checkJail(nil, true, none), pass, "a user of its own"},
		{"a user", checkJail(nil, false, none), pass, "your user"},
		{"root in a container", checkJail(refused, true, none), warn, "--no-namespaces"},
		{"a user without namespaces", checkJail(refused, false, debian), warn,
			"sysctl -w kernel.unprivileged_userns_clone=1"},
		{"a user of a container", checkJail(refused, false, none), warn, "--no-namespaces"},
		{"seccomp", checkSeccomp("kill_process kill_thread errno"), pass, ""},
		{"no seccomp", checkSeccomp(""), fail, "CONFIG_SECCOMP_FILTER"},
		{"no flaws", checkCPUFlaws(flaws(), cpuinfo, ""), pass, "0x2b"},
		{"nothing known", checkCPUFlaws(nil, cpuinfo, ""), skip, ""},
		{"old microcode", checkCPUFlaws(flaws("mds", "Vulnerable: Clear CPU buffers attempted, no microcode"), cpuinfo, ""),
			warn, "apt install intel-microcode"},
		{"an old kernel", checkCPUFlaws(flaws("vmscape", "Vulnerable"), cpuinfo, ""), warn, "vmscape (Vulnerable)"},
		{"switched off", checkCPUFlaws(flaws("mds", "Vulnerable"), cpuinfo, "quiet mitigations=off"), warn, "s/mitigations="},
		{"some left out", checkCPUFlaws(flaws("vmscape", "Vulnerable"), cpuinfo, "mitigations=auto,no_guest_host"), warn,
			"s/mitigations="},
		{"asked for in full", checkCPUFlaws(flaws("vmscape", "Vulnerable"), cpuinfo, "mitigations=auto,nosmt"), warn,
			"full-upgrade"},
		{"in a VM", checkCPUFlaws(flaws("mds", "Vulnerable; SMT Host state unknown"), inVM, ""), warn, "around it"},
		{"no landlock", checkLandlock(0), warn, "lsm="},
		{"landlock", checkLandlock(3), pass, ""},
		{"no SMT", checkCores("0", false), pass, ""},
		{"no cores known", checkCores("", false), pass, ""},
		{"core scheduling", checkCores("1", true), pass, "core scheduling"},
		{"shared cores", checkCores("1", false), warn, "smt/control"},
		{"ksm", checkKSM("1"), warn, "ksm/run"},
		{"no ksm", checkKSM("0"), pass, "off"},
	} {
		if c.got.Verdict != c.verdict || !strings.Contains(everything(c.got), c.detail) {
			t.Errorf("%s: %+v, want %s with %q", c.name, c.got, c.verdict, c.detail)
		}
	}
}
