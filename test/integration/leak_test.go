package integration_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// envInt returns a number from the environment, or def.
func envInt(t *testing.T, name string, def int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return def
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q: want a positive number", name, s)
	}
	return n
}

// Without FORKD_CYCLES, the leak test runs for leakTime and for at least minCycles cycles.
const (
	leakTime  = 30 * time.Second
	minCycles = 20
)

// Growth that does not count as a leak, for example of kernel caches and of the daemon's heap.
const (
	hostSlackKiB   = 64 << 10
	daemonSlackKiB = 24 << 10
)

// holdings are the resources in use by a daemon and its host.
type holdings struct {
	fds, vmms    []string
	files        []string // files in the run, state and RAM directories
	mounts       string
	cgroups      int
	availableKiB int // available memory of the host
	daemonKiB    int // resident memory of the daemon
}

// TestLeaks forks, evaluates and kills repeatedly, FORKD_CYCLES times or for leakTime. It compares
// the resources in use before and after.
func TestLeaks(t *testing.T) {
	d := load(t).start(t)
	for range 5 { // after these cycles, buffers, caches and the pool have their final sizes
		d.cycle(t)
	}
	before := d.settled(t, nil)
	cycles := envInt(t, "FORKD_CYCLES", 0)
	start := time.Now()
	n := 0
	for ; n < cycles || cycles == 0 && (n < minCycles || time.Since(start) < leakTime); n++ {
		d.cycle(t)
		if (n+1)%100 == 0 {
			t.Logf("%d cycles", n+1)
		}
	}
	after := d.settled(t, &before)
	t.Logf("%d cycles (FORKD_CYCLES sets how many; without it as many as fit into %v)", n, leakTime)
	t.Logf("before: %v", before)
	t.Logf("after:  %v", after)
	before.compare(t, after)
}

func (d *daemon) cycle(t *testing.T) {
	t.Helper()
	s := d.fork(t, 1)[0]
	d.alive(t, s.ID)
	d.kill(t, s)
}

// settled waits until the pool is full. If earlier holdings are given, it also waits until the
// daemon uses no more resources than at that time. It returns the resources in use.
func (d *daemon) settled(t *testing.T, was *holdings) holdings {
	t.Helper()
	var h holdings
	deadline := time.Now().Add(quietLimit)
	for {
		h = d.holdings(t)
		full := len(h.vmms) == 1
		if full && (was == nil || len(was.fds) == len(h.fds) && len(was.files) == len(h.files)) ||
			time.Now().After(deadline) {
			return h
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func (d *daemon) holdings(t *testing.T) holdings {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d", d.cmd.Process.Pid)
	d.Close() // idle connections of the client are not a leak
	time.Sleep(200 * time.Millisecond)
	h := holdings{vmms: d.vmms(t), availableKiB: procKiB(t, "/proc/meminfo", "MemAvailable:"),
		daemonKiB: procKiB(t, proc+"/status", "VmRSS:")}
	fds, err := os.ReadDir(proc + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		// The descriptor counts even if it has been closed since the directory was read.
		target, _ := os.Readlink(filepath.Join(proc, "fd", fd.Name()))
		h.fds = append(h.fds, target)
	}
	slices.Sort(h.fds)
	for _, dir := range []string{d.run, d.state, d.ram} {
		for _, name := range tree(t, dir) {
			h.files = append(h.files, filepath.Join(dir, name))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	h.mounts = string(mounts)
	for _, name := range tree(t, "/sys/fs/cgroup") {
		if filepath.Base(name) == "cgroup.procs" {
			h.cgroups++
		}
	}
	return h
}

func (h holdings) String() string {
	return fmt.Sprintf("%d descriptors of the daemon, %d VMMs, %d files, %d mounts, %d cgroups, %d MiB available, daemon %d KiB",
		len(h.fds), len(h.vmms), len(h.files), strings.Count(h.mounts, "\n"), h.cgroups, h.availableKiB>>10, h.daemonKiB)
}

// compare fails the test for every resource whose use has grown.
func (h holdings) compare(t *testing.T, after holdings) {
	t.Helper()
	if len(after.vmms) > len(h.vmms) {
		t.Errorf("VMM processes: %v, before %v", after.vmms, h.vmms)
	}
	if len(after.fds) > len(h.fds) {
		t.Errorf("descriptors of the daemon:\n%s\nbefore:\n%s", strings.Join(after.fds, "\n"), strings.Join(h.fds, "\n"))
	}
	if len(after.files) > len(h.files) {
		t.Errorf("files:\n%s\nbefore:\n%s", strings.Join(after.files, "\n"), strings.Join(h.files, "\n"))
	}
	if after.mounts != h.mounts {
		t.Errorf("mounts:\n%s\nbefore:\n%s", after.mounts, h.mounts)
	}
	if after.cgroups > h.cgroups {
		t.Errorf("%d cgroups, before %d", after.cgroups, h.cgroups)
	}
	if after.availableKiB < h.availableKiB-hostSlackKiB {
		t.Errorf("%d KiB of memory available, before %d", after.availableKiB, h.availableKiB)
	}
	if after.daemonKiB > h.daemonKiB+daemonSlackKiB {
		t.Errorf("the daemon's resident memory: %d KiB, before %d", after.daemonKiB, h.daemonKiB)
	}
}

// procKiB returns the number of a line in a file such as /proc/meminfo.
func procKiB(t *testing.T, path, field string) int {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(p)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == field {
			if n, err := strconv.Atoi(f[1]); err == nil {
				return n
			}
		}
	}
	t.Fatalf("no %s in %s", field, path)
	return 0
}
