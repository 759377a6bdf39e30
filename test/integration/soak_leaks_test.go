package integration_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// soakHoldings are the resources that the daemon, forkd-net and the file systems use.
type soakHoldings struct {
	holdings
	nets      []string // forkd-net processes
	netFDs    []string
	disk, ram uint64 // free bytes of the two file systems
}

// sum returns the resources that are counted, by kind.
func (h soakHoldings) sum() map[string][]string {
	return map[string][]string{"VMMs": h.vmms, "forkd-net": h.nets, "descriptors of the daemon": h.fds,
		"descriptors of forkd-net": h.netFDs, "files": h.files, "mounts": strings.Split(h.mounts, "\n")}
}

// holdings returns the resources in use. It does not count the descriptor that os.Process holds for
// forkd-net, because only a daemon that has started forkd-net itself has such a descriptor.
func (x *soaking) holdings() soakHoldings {
	x.t.Helper()
	h := soakHoldings{holdings: x.d.holdings(x.t), nets: x.d.processes(x.t, "forkd-net"), disk: free(x.t, x.disk),
		ram: free(x.t, x.d.ram)}
	for _, pid := range h.nets {
		if own := slices.Index(h.fds, "anon_inode:[pidfd]"); own >= 0 && x.d.isParentOf(x.t, pid) {
			h.fds = slices.Delete(h.fds, own, own+1)
		}
		fds, err := filepath.Glob("/proc/" + pid + "/fd/*")
		if err != nil {
			x.t.Fatal(err)
		}
		for _, fd := range fds {
			target, _ := os.Readlink(fd) // the descriptor counts even if it was closed in the meantime
			h.netFDs = append(h.netFDs, target)
		}
	}
	return h
}

// settled forks and kills a sandbox, so that the daemon refills its pool. It waits until the pool
// is full, and returns the resources in use.
func (x *soaking) settled() (h soakHoldings) {
	x.t.Helper()
	x.d.kill(x.t, x.fire.fork(soakTag))
	eventually(x.t, quietLimit, func() error {
		waiting := x.d.metric(x.t, "forkd_pool_shells")
		if h = x.holdings(); waiting != 1 || len(h.vmms) != 1 || len(h.nets) != 1 {
			return fmt.Errorf("%v VMMs wait of %v, forkd-net %v", waiting, h.vmms, h.nets)
		}
		return nil
	})
	return h
}

// compare waits until no more resources are in use than in the given earlier measurement. After a
// time limit, it reports the difference.
func (x *soaking) compare(before soakHoldings) {
	x.t.Helper()
	var after soakHoldings
	var more map[string]string
	for deadline := time.Now().Add(quietLimit); ; time.Sleep(time.Second) {
		after = x.settled()
		if more = before.more(after); len(more) == 0 || time.Now().After(deadline) {
			break
		}
	}
	x.t.Logf("before: %v, %d descriptors of forkd-net, %d MiB of disk and %d of RAM free",
		before.holdings, len(before.netFDs), before.disk>>20, before.ram>>20)
	x.t.Logf("after:  %v, %d descriptors of forkd-net, %d MiB of disk and %d of RAM free",
		after.holdings, len(after.netFDs), after.disk>>20, after.ram>>20)
	for kind, what := range more {
		x.report.Leak(kind, what)
	}
}

// more(after) describes, by kind, the resources that are in the measurement after but not in h.
func (h soakHoldings) more(after soakHoldings) map[string]string {
	more := map[string]string{}
	was := h.sum()
	for kind, now := range after.sum() {
		if len(now) > len(was[kind]) {
			more[kind] = fmt.Sprintf("%d, before %d:\n%s\nbefore:\n%s", len(now), len(was[kind]),
				strings.Join(now, "\n"), strings.Join(was[kind], "\n"))
		}
	}
	if after.cgroups > h.cgroups {
		more["cgroups"] = fmt.Sprintf("%d, before %d", after.cgroups, h.cgroups)
	}
	for kind, free := range map[string][2]uint64{"disk": {h.disk, after.disk}, "RAM": {h.ram, after.ram}} {
		if free[1]+slack < free[0] {
			more[kind] = fmt.Sprintf("%d bytes are free, before %d", free[1], free[0])
		}
	}
	return more
}
