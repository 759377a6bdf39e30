package budgets

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/internal/host/procmem"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/proto/vm"
)

// scan is the request of an ioctl: PAGEMAP_SCAN.
const scan = 0xc0606610

// TestLiveBranch bounds the cost of a live branch of a small sandbox: the operations of its VMM, and
// the files that the daemon flushes. Package machine bounds the freeze of a big guest.
func TestLiveBranch(t *testing.T) {
	w := newWorld(t)
	w.with(t, 0, func(m *lab.Manager) {
		r, err := m.Fork(t.Context(), sandbox.ForkRequest{Tag: tag, N: 1})
		if err != nil {
			t.Fatal(err)
		}
		s := r.Sandboxes[0]
		var vmms, daemon []counted
		var scans []uint64
		for i := range repeat() + 1 {
			time.Sleep(settle)
			before, own := w.read(t, s.PID), w.read(t, os.Getpid())
			scanned := w.ioctls(t, s.PID, scan)
			b, err := m.Branch(t.Context(), s.ID, sandbox.BranchRequest{Tag: fmt.Sprintf("b%d", i), Mode: vm.BranchLive})
			if err != nil {
				t.Fatal(err)
			}
			if b.Figure.Mode != vm.BranchLive.String() {
				t.Fatalf("this host cannot branch live: %s", b.Figure.Fallback)
			}
			time.Sleep(settle)
			if i == 0 { // it has what was written since the fork
				continue
			}
			vmms = append(vmms, w.read(t, s.PID).sub(before))
			daemon = append(daemon, w.read(t, os.Getpid()).sub(own))
			scans = append(scans, w.ioctls(t, s.PID, scan)-scanned)
		}
		t.Logf("the VMM: %v", vmms[0].numbers)
		t.Logf("the daemon: %v", daemon[0].numbers)
		check(t, "system calls of a VMM in a live branch", 65, vmms, calls)
		checkSwitches(t, "context switches of a VMM in a live branch", 35, vmms)
		check(t, "messages of a VMM in a live branch", 6, vmms, messages)
		check(t, "files that the daemon flushes for a live branch", 10, daemon, of(unix.SYS_FSYNC, unix.SYS_FDATASYNC))
		budget(t, "scans of the page map in a live branch", 4, median(scans))
		m.KillAll()
	})
}

func (w *world) ioctls(t *testing.T, pid int, request uint32) uint64 {
	t.Helper()
	n, err := w.counter.Ioctls(pid, request)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// privateKiB returns the private memory of a VMM without guest RAM.
func privateKiB(t *testing.T, pid int, guest uint64) uint64 {
	t.Helper()
	mem, err := procmem.Of(pid, guest)
	if err != nil {
		t.Fatal(err)
	}
	return mem.TotalPrivate() - mem.Private[procmem.PartGuest]
}
