package budgets

import (
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/vmtest/opcount"
)

// forks counts several forks of one child each. If the pool is not empty, the VMM was started before
// the request. Otherwise all of its operations count.
func (w *world) forks(t *testing.T, m *lab.Manager, pool int) (vmms, daemon []counted) {
	t.Helper()
	// This fork is not counted. It fills caches, and lets the pool know which VMMs to start. The
	// daemon asks the first three children of a snapshot which pages they have written.
	if _, err := m.Fork(t.Context(), sandbox.ForkRequest{Tag: tag, N: 3}); err != nil {
		t.Fatal(err)
	}
	m.KillAll()
	for range repeat() {
		if err := m.WaitPool(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		time.Sleep(settle)
		before := map[int]counted{}
		children, err := opcount.Children()
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range children {
			before[pid] = w.read(t, pid)
		}
		own := w.read(t, os.Getpid())
		r, err := m.Fork(t.Context(), sandbox.ForkRequest{Tag: tag, N: 1})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(settle)
		pid := r.Sandboxes[0].PID
		vmms = append(vmms, w.read(t, pid).sub(before[pid]))
		daemon = append(daemon, w.read(t, os.Getpid()).sub(own))
		m.KillAll()
	}
	return vmms, daemon
}

// messages counts the messages that a VMM has sent to the daemon: an answer to each request, and
// events. Nothing else of a VMM of a stub uses these calls.
var messages = of(unix.SYS_SENDMSG, unix.SYS_SENDTO)

// TestFork bounds the cost of a fork of one child. docs/testing.md has the measured values.
func TestFork(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		name                    string
		pool                    int
		calls, switches, faults uint64 // of the VMM
		messages                uint64 // from the VMM
		opened, flushed         uint64 // files that the daemon opens, and writes durably
	}{
		{name: "warm", pool: 1, calls: 50, switches: 12, faults: 24, messages: 1, opened: 10},
		{name: "cold", pool: 0, calls: 380, switches: 50, faults: 260, messages: 2, opened: 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.with(t, c.pool, func(m *lab.Manager) {
				vmms, daemon := w.forks(t, m, c.pool)
				t.Logf("a VMM: %v", vmms[0].numbers)
				t.Logf("the daemon: %v", daemon[0].numbers)
				check(t, "system calls of a VMM in a fork", c.calls, vmms, calls)
				checkSwitches(t, "context switches of a VMM in a fork", c.switches, vmms)
				check(t, "page faults of a VMM in a fork", c.faults, vmms, func(c counted) uint64 { return c.Faults })
				check(t, "messages of a VMM in a fork", c.messages, vmms, messages)
				check(t, "files that the daemon opens for a fork", c.opened, daemon, of(unix.SYS_OPENAT, unix.SYS_OPENAT2))
				check(t, "files that the daemon flushes for a fork", c.flushed, daemon,
					of(unix.SYS_FSYNC, unix.SYS_FDATASYNC))
			})
		})
	}
}

// TestIdleChildren bounds what an idle child holds: threads, descriptors and private memory of its
// VMM, goroutines and descriptors of the daemon.
func TestIdleChildren(t *testing.T) {
	const children = 10
	w := newWorld(t)
	w.with(t, 0, func(m *lab.Manager) {
		r, err := m.Fork(t.Context(), sandbox.ForkRequest{Tag: tag, N: 1}) // the first fork also starts helpers
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(settle)
		goroutines, descriptors := runtime.NumGoroutine(), entries(t, os.Getpid(), "fd")
		if r, err = m.Fork(t.Context(), sandbox.ForkRequest{Tag: tag, N: children}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(settle)
		goroutines, descriptors = runtime.NumGoroutine()-goroutines, entries(t, os.Getpid(), "fd")-descriptors
		var threads, files, private []uint64
		for _, s := range r.Sandboxes {
			threads, files = append(threads, entries(t, s.PID, "task")), append(files, entries(t, s.PID, "fd"))
			info, err := m.Snapshots().Detail(tag)
			if err != nil {
				t.Fatal(err)
			}
			private = append(private, privateKiB(t, s.PID, info.Machine.MemoryBytes))
		}
		budget(t, "the number of threads of a VMM", 7, median(threads))
		budget(t, "the number of descriptors of a VMM", 21, median(files))
		budget(t, "the private memory of a VMM in KiB, without guest RAM,", 690, median(private))
		budget(t, "the number of goroutines of the daemon for 10 children", 3*children+3, uint64(max(goroutines, 0)))
		budget(t, "the number of descriptors of the daemon for 10 children", 5*children+3, descriptors)
	})
}

func median(all []uint64) uint64 { return slices.Sorted(slices.Values(all))[len(all)/2] }
