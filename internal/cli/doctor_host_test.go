package cli

import (
	"math"
	"strings"
	"testing"
)

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
		detail  string // part of it
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
			"remount,favordynmods /sys/fs/cgroup"},
		{"fast cgroups", checkCgroupMount("cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate,favordynmods 0 0\n"), pass, ""},
		{"limits", judgeLimits(""), pass, "memory"},
		{"no limits", judgeLimits("cgroup v2 is not mounted"), warn, "not mounted: forks that ask"},
		{"no cgroups", checkCgroupMount("proc /proc proc rw 0 0\n"), skip, ""},
		{"few pids", checkThreads(pidsLeft("1:name=x:/y\n0::/a/b\n", read), math.MaxUint64), warn, "pids.max of the cgroup allows 200"},
		{"no pids", checkThreads(pidsLeft("0::/c", read), math.MaxUint64), warn, "allows 0"},
		{"pids without a limit", checkThreads(pidsLeft("0::/", read), math.MaxUint64), pass, ""},
		{"cgroup v1", checkThreads(pidsLeft("1:pids:/a", read), math.MaxUint64), pass, ""},
		{"a low rlimit", checkThreads(math.MaxUint64, 1000), warn, "RLIMIT_NPROC of the user allows 1000"},
		{"both", checkThreads(10, 20), warn, "; RLIMIT_NPROC"},
		{"strict overcommit", checkOvercommit("2"), warn, "vm.overcommit_memory=1"},
		{"usual overcommit", checkOvercommit("0"), pass, "0"},
	} {
		if c.got.Verdict != c.verdict || !strings.Contains(c.got.Detail, c.detail) {
			t.Errorf("%s: %+v, want %s with %q", c.name, c.got, c.verdict, c.detail)
		}
	}
}
