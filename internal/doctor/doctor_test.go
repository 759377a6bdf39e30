package doctor

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/emu/tcghost"
)

// everything returns all texts of a finding in one string.
func everything(f Finding) string {
	if f.Fix == nil {
		return f.Detail
	}
	return f.Detail + "\n" + f.Fix.Kind + " " + f.Fix.Command
}

// with(files...) returns a host that has the given files. The arguments are names and contents,
// alternately.
func with(files ...string) *Host {
	return &Host{read: func(name string) string {
		for i := 0; i < len(files); i += 2 {
			if files[i] == name {
				return files[i+1]
			}
		}
		return ""
	}}
}

// check runs the check with the given name. The finding includes the fix of the check's row.
func (h *Host) check(t *testing.T, name string) Finding {
	first, kernel, last := checks()
	for _, c := range slices.Concat(first, kernel, last) {
		if c.name == name {
			return h.do([]check{c})[0]
		}
	}
	t.Fatalf("no check %q", name)
	return Finding{}
}

func TestDoctorKnowsHostSettings(t *testing.T) {
	cgroups := func(self string) *Host {
		return with("/proc/self/cgroup", self,
			"/sys/fs/cgroup/a/b/pids.max", "max", "/sys/fs/cgroup/a/pids.max", "300", "/sys/fs/cgroup/a/pids.current", "100",
			"/sys/fs/cgroup/c/pids.max", "9", "/sys/fs/cgroup/c/pids.current", "20")
	}
	controllers := func(root bool, self, dir, list string) Finding {
		h := with("/proc/self/cgroup", self, dir+"/cgroup.controllers", list)
		h.root = root
		return h.controllers("/sys/fs/cgroup", bootWith("systemd.unified_cgroup_hierarchy=1"))
	}
	daemon := func(check string, a answer) Finding { return (&Host{Version: "1.0", daemon: a}).check(t, check) }
	left := func(l ...client.LeftAlone) answer { return answer{version: &client.Version{LeftAlone: l}} }
	store := func(l ...client.Snapshot) answer { return answer{version: &client.Version{}, snapshots: l} }
	const cpuinfo, meminfo, thp = "/proc/cpuinfo", "/proc/meminfo", "/sys/kernel/mm/transparent_hugepage/enabled"
	for _, c := range []struct {
		name    string
		got     Finding
		verdict Verdict
		detail  string // part of the detail, or of the fix's command
	}{
		{"an old kernel", with("/proc/sys/kernel/osrelease", "5.15.0-91-generic").check(t, "kernel"),
			Warn, "no /dev/userfaultfd"},
		{"a kernel without PAGEMAP_SCAN", with("/proc/sys/kernel/osrelease", "6.1.0-18-amd64").check(t, "kernel"),
			Warn, "pagemap"},
		{"the last such", with("/proc/sys/kernel/osrelease", "6.6.90").check(t, "kernel"), Warn, "pagemap"},
		{"a new kernel", with("/proc/sys/kernel/osrelease", "6.7.0").check(t, "kernel"), Pass, "6.7.0"},
		{"a newer one", with("/proc/sys/kernel/osrelease", "7.0.1-rc1").check(t, "kernel"), Pass, "7.0.1"},
		{"no kernel", with("/proc/sys/kernel/osrelease", "plan9").check(t, "kernel"), Skip, "plan9"},
		{"nx on", with("/sys/module/kvm/parameters/nx_huge_pages", "Y").check(t, "kvm.nx_huge_pages"),
			Warn, "nx_huge_pages=never"},
		{"nx off", with("/sys/module/kvm/parameters/nx_huge_pages", "N").check(t, "kvm.nx_huge_pages"), Pass, "N"},
		{"nx never", with("/sys/module/kvm/parameters/nx_huge_pages", "never").check(t, "kvm.nx_huge_pages"), Pass, "never"},
		{"no kvm module", with("/sys/module/kvm/parameters/nx_huge_pages", "").check(t, "kvm.nx_huge_pages"), Skip, ""},
		{"slow cgroups",
			with("/proc/self/mounts", "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n").check(t, "cgroup favordynmods"),
			Warn,
			"remount,favordynmods '/sys/fs/cgroup'"},
		{"fast cgroups",
			with("/proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate,favordynmods 0 0\n").check(t, "cgroup favordynmods"),
			Pass, ""},
		{"limits", daemon(checkLimits, answer{version: &client.Version{LimitsMissing: ""}}), Pass, "memory"},
		{"no limits", daemon(checkLimits, answer{version: &client.Version{LimitsMissing: "cgroup v2 is not mounted"}}),
			Warn, "not mounted: forks that ask"},
		{"no cgroups", with("/proc/self/mounts", "proc /proc proc rw 0 0\n").check(t, "cgroup favordynmods"), Skip, ""},
		{"few pids", judgeThreads(cgroups("1:name=x:/y\n0::/a/b\n").pidsLeft(), math.MaxUint64), Warn,
			"pids.max of the cgroup allows 200"},
		{"no pids", judgeThreads(cgroups("0::/c").pidsLeft(), math.MaxUint64), Warn, "allows 0"},
		{"pids without a limit", judgeThreads(cgroups("0::/").pidsLeft(), math.MaxUint64), Pass, ""},
		{"cgroup v1", judgeThreads(cgroups("1:pids:/a").pidsLeft(), math.MaxUint64), Pass, ""},
		{"a low rlimit", judgeThreads(math.MaxUint64, 1000), Warn, "RLIMIT_NPROC of the user allows 1000"},
		{"both", judgeThreads(10, 20), Warn, "; RLIMIT_NPROC"},
		{"many mappings", with("/proc/sys/vm/max_map_count", "65530").check(t, "vm.max_map_count"), Pass, ""},
		{"few mappings", with("/proc/sys/vm/max_map_count", "10000").check(t, "vm.max_map_count"),
			Warn, "vm.max_map_count=65530"},
		{"unknown mappings", with("/proc/sys/vm/max_map_count", "").check(t, "vm.max_map_count"), Skip, ""},
		{"memory", with(meminfo, "MemTotal: 8000000 kB\nMemAvailable:    4000000 kB\n").check(t, "memory"), Pass,
			"3906 MiB available of 7812"},
		{"little memory", with(meminfo, "MemTotal: 8000000 kB\nMemAvailable: 400000 kB\n").check(t, "memory"),
			Warn, "forkd suspend"},
		{"no memory known", with(meminfo, "").check(t, "memory"), Skip, ""},
		{"no swap", with(meminfo, "SwapTotal: 0 kB\n").check(t, "swap"), Pass, "none"},
		{"swap", with(meminfo, "SwapTotal: 2048 kB\nSwapFree: 1024 kB\n").check(t, "swap"), Pass, "1 MiB free of 2 MiB"},
		{"huge pages of forkd 0.5",
			with(meminfo, "HugePages_Free: 512\nHugepagesize: 2048 kB\n", thp, "always [madvise] never").check(t, "huge pages"),
			Warn,
			"vm.nr_hugepages=0"},
		{"no huge pages",
			with(meminfo, "HugePages_Free: 0\nHugepagesize: 2048 kB\n", thp, "always [madvise] never").check(t, "huge pages"),
			Pass, "madvise"},
		{"virtualization", with(cpuinfo, "flags\t: fpu svm sse\n").check(t, "hardware virtualization"), Pass, "kvm_amd"},
		{"nested", with(cpuinfo, "flags\t: fpu vmx hypervisor sse\n").check(t, "hardware virtualization"),
			Pass, "virtual machine itself"},
		{"a VM that cannot nest", with(cpuinfo, "flags\t: fpu hypervisor sse\n").check(t, "hardware virtualization"),
			Warn, "let the host around it nest"},
		{"no virtualization", with(cpuinfo, "flags\t: fpu sse\n").check(t, "hardware virtualization"),
			Warn, "forkd machine start"},
		{"root's cgroups", controllers(true, "0::/a", "/sys/fs/cgroup", "cpuset cpu io memory pids"),
			Pass, "memory"},
		{"without io", controllers(true, "0::/a", "/sys/fs/cgroup", "cpuset cpu memory pids"), Warn,
			"unified_cgroup_hierarchy"},
		{"delegated", controllers(false, "1:x:/\n0::/user.slice/s\n", "/sys/fs/cgroup/user.slice/s", "cpu io memory pids"),
			Pass, ""},
		{"half delegated", controllers(false, "0::/user.slice/s", "/sys/fs/cgroup/user.slice/s", "memory pids"), Warn,
			"no controller cpu, io"},
		{"the same version", daemon("version of the daemon", answer{version: &client.Version{Version: "1.0"}}), Pass, ""},
		{"an older daemon", daemon("version of the daemon", answer{version: &client.Version{Version: "0.5.9"}}),
			Warn, "0.5.9, while"},
		{"nothing left alone", daemon("sandboxes of an earlier daemon", left()), Pass, "none"},
		{"a VMM of another version",
			daemon("sandboxes of an earlier daemon", left(client.LeftAlone{ID: "sb-a", PID: 77, Reason: "control protocol 3"})),
			Warn, "kill 77 #"},
		{"a suspended sandbox",
			daemon("sandboxes of an earlier daemon", left(client.LeftAlone{ID: "sb-b", Reason: "not found"})),
			Warn,
			"sb-b: not found"},
		{"a good store",
			daemon("snapshots", store(client.Snapshot{Tag: "a", Status: "ready", Bootable: true},
				client.Snapshot{Tag: "b", Status: "writing"})),
			Pass, "2 snapshots"},
		{"a failed snapshot", daemon("snapshots", store(client.Snapshot{Tag: "a", Status: "failed"})),
			Warn, "forkd rmi 'a'"},
		{"damage",
			daemon("snapshots", store(client.Snapshot{Tag: "a", Status: "ready", Bootable: true, Warning: "a: damaged"})),
			Warn,
			"a: damaged"},
		{"not written",
			daemon("snapshots", store(client.Snapshot{Tag: "a", Status: "ready", Bootable: true, Persist: "failed"})),
			Warn,
			"next boot"},
		{"a token file", judgeTokenFile("/t", 0o600, true), Pass, "/t"},
		{"an open one", judgeTokenFile("/t's", 0o640, false), Fail, `safe chmod 600 '/t'\''s'`},
		{"an open token", judgeTokenFile("/t's", 0o640, true), Fail, `manual rm '/t'\''s' && forkd token new`},
		{"one for all", judgeTokenFile("/t", 0o660, false), Fail, "manual forkd token ls"},
		{"strict overcommit", with("/proc/sys/vm/overcommit_memory", "2").check(t, "vm.overcommit_memory"),
			Warn, "vm.overcommit_memory=1"},
		{"usual overcommit", with("/proc/sys/vm/overcommit_memory", "0").check(t, "vm.overcommit_memory"), Pass, "0"},
	} {
		if c.got.Verdict != c.verdict || !strings.Contains(everything(c.got), c.detail) {
			t.Errorf("%s: %+v, want %s with %q", c.name, c.got, c.verdict, c.detail)
		}
	}
}

// If VMs run in an emulated host, the findings about this host's kernel need no fix.
func TestDoctorInAnEmulatedHost(t *testing.T) {
	made := func(check string, v Verdict) Finding {
		return Finding{Check: check, Verdict: v, Fix: &Fix{Command: "x"}}
	}
	findings := append([]Finding{{Check: checkMachine, Verdict: Pass}, {Check: CheckDaemon, Verdict: Pass}},
		needless([]Finding{made(checkKVM, Warn), made("cgroup v2", Fail), {Check: "kernel", Verdict: Pass}})...)
	for _, f := range findings {
		if f.Fix != nil || f.Verdict == Warn || f.Verdict == Fail {
			t.Errorf("%+v", f)
		}
	}
	short := Foremost(findings)
	if len(short) != 2 || short[0].Verdict != Pass || short[0].Check != checkVMs || short[1].Check != CheckDaemon {
		t.Errorf("%+v", short)
	}
	short = Foremost([]Finding{{Check: checkMachine, Verdict: Skip}, made(checkKVM, Fail), made("token file", Fail),
		made("swap", Warn)})
	if len(short) != 2 || short[0].Check != checkKVM || short[1].Check != "token file" {
		t.Errorf("%+v", short)
	}
}

// On a host without a daemon, every check that does not need the daemon has exactly one finding. If
// the row of a check has a fix, each warning or failure of this check has a fix.
func TestEveryCheck(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	host := Host{
		Version:   "1.0",
		TokenFile: func() (string, error) { return tokens, nil },
		Machine:   func() (tcghost.Machine, bool, error) { return tcghost.Machine{}, false, nil },
		Connect: func(context.Context) (*client.Client, string, error) {
			return nil, "", errors.New("nobody at home")
		},
	}
	got := map[string]Finding{}
	for _, f := range host.Diagnose(t.Context()) {
		if _, twice := got[f.Check]; twice || f.Verdict == "" {
			t.Errorf("%+v", f)
		}
		got[f.Check] = f
	}
	first, kernel, last := checks()
	for _, c := range slices.Concat(first, kernel, last) {
		ofDaemon := slices.Contains([]string{"disk space of the host", "version of the daemon", checkLimits,
			"sandboxes of an earlier daemon", "snapshots"}, c.name)
		f, there := got[c.name]
		if there == ofDaemon {
			t.Errorf("%s: found: %t", c.name, there)
		}
		if c.fix != nil && (f.Verdict == Warn || f.Verdict == Fail) && f.Fix == nil {
			t.Errorf("%+v has no fix", f)
		}
	}
	if f := got[CheckDaemon]; f.Verdict != Warn || f.Detail != "nobody at home" {
		t.Errorf("%+v", f)
	}
	if f := got["token file"]; f.Verdict != Pass || f.Detail != tokens {
		t.Errorf("%+v", f)
	}
}

func TestNetworkFinding(t *testing.T) {
	const conf = "nameserver 1.1.1.1"
	for _, c := range []struct {
		unreachable error
		conf        string
		files       uint64
		want        Verdict
		text        string
	}{
		{nil, conf, 1 << 20, Pass, "786432 connections"},
		{unix.EPERM, conf, 1 << 20, Warn, "allows its users"},
		{unix.ENETUNREACH, conf, 1 << 20, Warn, "no route"},
		{nil, "", 1 << 20, Warn, "--resolver"},
		{nil, conf, 1024, Warn, "LimitNOFILE"},
	} {
		if f := judgeNetwork(c.unreachable, c.conf, c.files); f.Verdict != c.want ||
			!strings.Contains(everything(f), c.text) {
			t.Errorf("%+v: %+v", c, f)
		}
	}
}
