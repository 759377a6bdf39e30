package cli

import (
	"math"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// everything that a finding says.
func everything(f finding) string {
	if f.Fix == nil {
		return f.Detail
	}
	return f.Detail + "\n" + f.Fix.Kind + " " + f.Fix.Command
}

// controllers is a file system with those of one cgroup.
func controllers(dir, list string) func(string) string {
	return func(name string) string {
		return map[string]string{dir + "/cgroup.controllers": list}[name]
	}
}

func TestDoctorKnowsHostSettings(t *testing.T) {
	cgroups := map[string]string{
		"/sys/fs/cgroup/a/b/pids.max": "max", "/sys/fs/cgroup/a/pids.max": "300", "/sys/fs/cgroup/a/pids.current": "100",
		"/sys/fs/cgroup/c/pids.max": "9", "/sys/fs/cgroup/c/pids.current": "20",
	}
	read := func(name string) string { return cgroups[name] }
	for _, c := range []struct {
		name    string
		got     finding
		verdict verdict
		detail  string // part of it, or of the command that mends it
	}{
		{"an old kernel", checkKernel("5.15.0-91-generic"), warn, "no /dev/userfaultfd"},
		{"a kernel without PAGEMAP_SCAN", checkKernel("6.1.0-18-amd64"), warn, "pagemap"},
		{"the last such", checkKernel("6.6.90"), warn, "pagemap"},
		{"a new kernel", checkKernel("6.7.0"), pass, "6.7.0"},
		{"a newer one", checkKernel("7.0.1-rc1"), pass, "7.0.1"},
		{"no kernel", checkKernel("plan9"), skip, "plan9"},
		{"nx on", checkNXHugePages("Y"), warn, "nx_huge_pages=never"},
		{"nx off", checkNXHugePages("N"), pass, "N"},
		{"nx never", checkNXHugePages("never"), pass, "never"},
		{"no kvm module", checkNXHugePages(""), skip, ""},
		{"slow cgroups", checkCgroupMount("proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n"), warn,
			"remount,favordynmods '/sys/fs/cgroup'"},
		{"fast cgroups", checkCgroupMount("cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate,favordynmods 0 0\n"), pass, ""},
		{"limits", judgeLimits(""), pass, "memory"},
		{"no limits", judgeLimits("cgroup v2 is not mounted"), warn, "not mounted: forks that ask"},
		{"no cgroups", checkCgroupMount("proc /proc proc rw 0 0\n"), skip, ""},
		{"few pids", checkThreads(pidsLeft("1:name=x:/y\n0::/a/b\n", read), math.MaxUint64), warn,
			"pids.max of the cgroup allows 200"},
		{"no pids", checkThreads(pidsLeft("0::/c", read), math.MaxUint64), warn, "allows 0"},
		{"pids without a limit", checkThreads(pidsLeft("0::/", read), math.MaxUint64), pass, ""},
		{"cgroup v1", checkThreads(pidsLeft("1:pids:/a", read), math.MaxUint64), pass, ""},
		{"a low rlimit", checkThreads(math.MaxUint64, 1000), warn, "RLIMIT_NPROC of the user allows 1000"},
		{"both", checkThreads(10, 20), warn, "; RLIMIT_NPROC"},
		{"many mappings", checkMaps("65530"), pass, ""},
		{"few mappings", checkMaps("10000"), warn, "vm.max_map_count=65530"},
		{"unknown mappings", checkMaps(""), skip, ""},
		{"memory", checkMemory(memoryOf("MemTotal: 8000000 kB\nMemAvailable:    4000000 kB\n")), pass,
			"3906 MiB available of 7812"},
		{"little memory", checkMemory(memoryOf("MemTotal: 8000000 kB\nMemAvailable: 400000 kB\n")), warn, "forkd suspend"},
		{"no memory known", checkMemory(memoryOf("")), skip, ""},
		{"no swap", checkSwap(memoryOf("SwapTotal: 0 kB\n")), pass, "none"},
		{"swap", checkSwap(memoryOf("SwapTotal: 2048 kB\nSwapFree: 1024 kB\n")), pass, "1 MiB free of 2 MiB"},
		{"huge pages of forkd 0.5", checkHugePages(memoryOf("HugePages_Free: 512\nHugepagesize: 2048 kB\n"),
			"always [madvise] never"), warn,
			"vm.nr_hugepages=0"},
		{"no huge pages", checkHugePages(memoryOf("HugePages_Free: 0\nHugepagesize: 2048 kB\n"), "always [madvise] never"),
			pass, "madvise"},
		{"virtualization", checkHWVirt("flags\t: fpu svm sse\n"), pass, "kvm_amd"},
		{"nested", checkHWVirt("flags\t: fpu vmx hypervisor sse\n"), pass, "virtual machine itself"},
		{"a VM that cannot nest", checkHWVirt("flags\t: fpu hypervisor sse\n"), warn, "let the host around it nest"},
		{"no virtualization", checkHWVirt("flags\t: fpu sse\n"), warn, "forkd machine start"},
		{"root's cgroups", judgeCgroup(true, "/sys/fs/cgroup/a", controllers("/sys/fs/cgroup", "cpuset cpu io memory pids")),
			pass, "memory"},
		{"without io", judgeCgroup(true, "/sys/fs/cgroup/a", controllers("/sys/fs/cgroup", "cpuset cpu memory pids")), warn,
			"unified_cgroup_hierarchy"},
		{"delegated", judgeCgroup(false, ownCgroup("1:x:/\n0::/user.slice/s\n"),
			controllers("/sys/fs/cgroup/user.slice/s", "cpu io memory pids")), pass, ""},
		{"half delegated", judgeCgroup(false, ownCgroup("0::/user.slice/s"),
			controllers("/sys/fs/cgroup/user.slice/s", "memory pids")), warn,
			"no controller cpu, io"},
		{"the same version", judgeVersion(version), pass, ""},
		{"an older daemon", judgeVersion("0.5.9"), warn, "0.5.9, while"},
		{"nothing left alone", judgeLeftAlone(nil), pass, "none"},
		{"a VMM of another version", judgeLeftAlone([]client.LeftAlone{{ID: "sb-a", PID: 77, Reason: "control protocol 3"}}),
			warn, "kill 77 #"},
		{"a suspended sandbox", judgeLeftAlone([]client.LeftAlone{{ID: "sb-b", Reason: "not found"}}), warn,
			"sb-b: not found"},
		{"a good store", judgeStore([]client.Snapshot{{Tag: "a", Status: "ready", Bootable: true},
			{Tag: "b", Status: "writing"}}), pass, "2 snapshots"},
		{"a failed snapshot", judgeStore([]client.Snapshot{{Tag: "a", Status: "failed"}}), warn, "forkd rmi 'a'"},
		{"damage", judgeStore([]client.Snapshot{{Tag: "a", Status: "ready", Bootable: true, Warning: "a: damaged"}}), warn,
			"a: damaged"},
		{"not written", judgeStore([]client.Snapshot{{Tag: "a", Status: "ready", Bootable: true, Persist: "failed"}}), warn,
			"next boot"},
		{"a token file", judgeTokenFile("/t", 0o600, true), pass, "/t"},
		{"an open one", judgeTokenFile("/t's", 0o640, false), fail, `safe chmod 600 '/t'\''s'`},
		{"an open token", judgeTokenFile("/t's", 0o640, true), fail, `manual rm '/t'\''s' && forkd token new`},
		{"one for all", judgeTokenFile("/t", 0o660, false), fail, "manual forkd token ls"},
		{"strict overcommit", checkOvercommit("2"), warn, "vm.overcommit_memory=1"},
		{"usual overcommit", checkOvercommit("0"), pass, "0"},
	} {
		if c.got.Verdict != c.verdict || !strings.Contains(everything(c.got), c.detail) {
			t.Errorf("%s: %+v, want %s with %q", c.name, c.got, c.verdict, c.detail)
		}
	}
}
