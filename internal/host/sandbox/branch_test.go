package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	durable "github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/host/writers/writertest"
	"github.com/forkd/forkd/internal/proto/vm"
)

// source bakes a snapshot, forks one sandbox from it, and returns the sandbox's id.
func (w *world) source(t *testing.T) string {
	t.Helper()
	if _, err := w.Bake(t.Context(), w.bake); err != nil {
		t.Fatal(err)
	}
	return w.fork(t, "p")
}

func (w *world) fork(t *testing.T, tag string) string {
	t.Helper()
	r, err := w.Fork(t.Context(), ForkRequest{Tag: tag, N: 1})
	if err != nil {
		t.Fatal(err)
	}
	return r.Sandboxes[0].ID
}

func (w *world) branch(t *testing.T, id, tag string, mode vm.BranchMode) BranchResult {
	t.Helper()
	r, err := w.Branch(t.Context(), id, BranchRequest{Tag: tag, Mode: mode})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (w *world) layers(t *testing.T, tag string) (memory, disk int) {
	t.Helper()
	d, err := w.Snapshots().Detail(tag)
	if err != nil {
		t.Fatal(err)
	}
	return d.MemoryLayers, d.DiskLayers
}

// Each branch adds one layer to the memory and one to the disk. Only a full branch has a single
// memory layer. The sandbox still runs from the same snapshot.
func TestBranchChains(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	for i, c := range []struct {
		mode         vm.BranchMode
		memory, disk int
	}{{vm.BranchLive, 2, 2}, {vm.BranchDiff, 3, 3}, {vm.BranchFull, 1, 4}, {vm.BranchDiff, 4, 5}} {
		tag := fmt.Sprintf("b%d", i)
		r := w.branch(t, id, tag, c.mode)
		if r.Info.Parent != "p" || r.Figure.Mode != c.mode.String() {
			t.Errorf("%s: %+v", tag, r)
		}
		if memory, disk := w.layers(t, tag); memory != c.memory || disk != c.disk {
			t.Errorf("%s: %d memory and %d disk layers, want %d and %d", tag, memory, disk, c.memory, c.disk)
		}
	}
	child := w.fork(t, "b1")
	w.branch(t, child, "c", vm.BranchLive)
	if memory, disk := w.layers(t, "c"); memory != 4 || disk != 4 {
		t.Errorf("branch of a child: %d memory and %d disk layers", memory, disk)
	}
	if _, err := w.Snapshots().Delete("b1", store.DeleteSingle); err == nil {
		t.Error("deleted a snapshot with a sandbox and a branch")
	}
	if i, err := w.Get(id); err != nil || i.Info().BranchCount != 4 {
		t.Errorf("branch count %+v, %v", i.Info(), err)
	}
	w.KillAll()
	w.checkClean(t)
}

// checkTops fails the test if the disk of a sandbox consists of too many files after many branches.
func (w *world) checkTops(t *testing.T, id string) {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(w.cfg.DataDir, id))
	if err != nil || len(files) < 2 || len(files) > chain.MaxTops+1 {
		t.Errorf("%d tops, want at most %d frozen ones and another: %v (%v)", len(files), chain.MaxTops, files, err)
	}
	if w.vmms.Most < chain.MaxTops || w.vmms.Most > chain.MaxTops+2 {
		t.Errorf("its VM has had %d layers above those of its snapshot", w.vmms.Most)
	}
}

// The number of layers of a snapshot is bounded, however often a sandbox is branched, and however
// deeply forks and branches are nested.
func TestChainsAreBounded(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	for i := range 3*chain.MaxDepth - 1 {
		w.branch(t, id, fmt.Sprintf("wide-%d", i), vm.BranchDiff)
		if _, disk := w.layers(t, fmt.Sprintf("wide-%d", i)); disk > chain.MaxDepth+1 {
			t.Fatalf("branch %d has %d disk layers", i, disk)
		}
	}
	w.checkTops(t, id)
	deepest := 0
	for i := range 2*chain.MaxDepth + 2 {
		tag := fmt.Sprintf("deep-%d", i)
		w.branch(t, id, tag, vm.BranchDiff)
		if memory, disk := w.layers(t, tag); memory > chain.MaxDepth+1 || disk > chain.MaxDepth+1 {
			t.Fatalf("branch %d has %d memory and %d disk layers", i, memory, disk)
		}
		id = w.fork(t, tag)
		if _, disk := w.layers(t, tag); disk == chain.MaxDepth {
			for j := range 2 * chain.MaxTops {
				w.branch(t, id, fmt.Sprintf("deep-%d-%d", i, j), vm.BranchDiff)
			}
			w.checkTops(t, id)
			deepest++
		}
	}
	if deepest == 0 {
		t.Error("no snapshot was as deep as can be")
	}
	w.KillAll()
	w.checkClean(t)
}

// At whatever step a branch fails, the sandbox continues, its record names the disk top in use, no
// snapshot is published, and the next branch works.
func TestFailedBranch(t *testing.T) {
	full := &vm.Error{Code: vm.ErrNoSpace, Err: errors.New("the disk is full")}
	for _, c := range []struct {
		name string
		set  func(*vmfake.VMMs, error)
		disk int // number of disk layers of the next branch
	}{
		{"before the disk was swapped", func(f *vmfake.VMMs, err error) { f.BranchErr = err }, 2},
		{"after", func(f *vmfake.VMMs, err error) { f.LateErr = err }, 3},
		{"while copying", func(f *vmfake.VMMs, err error) { f.CopyErr = err }, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 0)
			defer w.stop()
			id := w.source(t)
			c.set(w.vmms, full)
			_, err := w.Branch(t.Context(), id, BranchRequest{Tag: "b", Mode: vm.BranchLive})
			if !errors.Is(err, full) || !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("branch: %v", err)
			}
			c.set(w.vmms, nil)
			if list := w.Snapshots().List(); len(list) != 1 {
				t.Errorf("published: %+v", list)
			}
			if err := w.Use(t.Context(), id, "use", nothing); err != nil {
				t.Errorf("the source: %v", err)
			}
			w.branch(t, id, "b", vm.BranchLive)
			if _, disk := w.layers(t, "b"); disk != c.disk {
				t.Errorf("%d disk layers, want %d", disk, c.disk)
			}
			w.KillAll()
			w.checkClean(t)
		})
	}
}

// A branch that was started with NoWait keeps its place, its tag and the lock of its sandbox until
// it is complete.
func TestBranchWithoutWaiting(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	w.branches = gate.New(1)
	id := w.source(t)
	another := w.fork(t, "p")
	w.vmms.Copying = make(chan struct{})
	r, err := w.Branch(t.Context(), id, BranchRequest{Tag: "b", Mode: vm.BranchLive, NoWait: true})
	if err != nil || !r.Info.Writing {
		t.Fatalf("%+v, %v", r, err)
	}
	var busy *admit.BusyError
	if _, err := w.Branch(t.Context(), another, BranchRequest{Mode: vm.BranchLive}); !errors.As(err, &busy) {
		t.Errorf("beyond the limit: %v", err)
	}
	var exists *store.ExistsError
	w.unwatched.Patience = 0
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "b", N: 1}); !errors.As(err, &exists) || !exists.InFlight {
		t.Errorf("fork of a tag that takes too long: %v", err)
	}
	w.unwatched.Patience = time.Hour
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := w.Fork(gone, ForkRequest{Tag: "b", N: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that left: %v", err)
	}
	if err := w.DeleteSnapshot("b", store.DeleteForce); !errors.As(err, &exists) {
		t.Errorf("delete of a tag that is being written: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := w.Rollback(ctx, id, "", unique.AsBefore); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("rollback beside a branch: %v", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { close(w.vmms.Copying) })
	w.fork(t, "b") // must wait for the branch

	w.vmms.CopyErr = errors.New("lost")
	if _, err := w.Branch(t.Context(), id, BranchRequest{Tag: "f", Mode: vm.BranchLive, NoWait: true}); err != nil {
		t.Fatal(err)
	}
	w.background.Wait()
	var damaged *store.DamagedError
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "f", N: 1}); !errors.As(err, &damaged) ||
		!strings.Contains(err.Error(), "lost") {
		t.Errorf("a failure that nobody waited for: %v", err)
	}
	if err := w.DeleteSnapshot("f", store.DeleteSingle); err != nil {
		t.Error(err)
	}
	w.KillAll()
	w.checkClean(t)
}

// A daemon may be killed after it has recorded a new disk top and before the VMM has answered. The
// next daemon finds out which top the VM writes to.
func TestRestartDuringABranch(t *testing.T) {
	for _, swapped := range []bool{false, true} {
		w := newWorld(t, 0)
		id := w.source(t)
		s, err := w.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.data, "next"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.update(func(r *ledger.Record) {
			r.Pending = &durable.PendingTop{Name: "next", Owner: "o",
				Swaps: 0}
		}); err != nil {
			t.Fatal(err)
		}
		if swapped {
			s.live.vmm.(*vmfake.VMM).Swaps = 1
		}
		w.stop()
		w.start(t, 0)
		if n, err := w.Recover(); n != 1 || err != nil {
			t.Fatalf("recovered %d, %v", n, err)
		}
		if s, err = w.Get(id); err != nil {
			t.Fatal(err)
		}
		r := s.record
		if r.Pending != nil || (r.Top == "next") != swapped || (len(r.Frozen) == 1) != swapped {
			t.Errorf("swapped %v: %+v", swapped, r)
		}
		if _, err := os.Stat(filepath.Join(s.data, "next")); (err == nil) != swapped {
			t.Errorf("swapped %v: the new top: %v", swapped, err)
		}
		w.KillAll()
		w.checkClean(t)
		w.stop()
	}
}

// isKilledKeeper checks that an operation has failed because the VMM still had a file open for
// writing. It also checks that the VMM was killed.
func isKilledKeeper(t *testing.T, w *world, id, what string, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "is open for writing") {
		t.Errorf("%s: %v", what, err)
	}
	w.awaitExit(t, id)
}

// If a VMM refuses a branch, but keeps one of the branch's files open, the VMM is killed.
func TestFilesOfARefusedBranch(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	w.writers = 0
	id := w.source(t)
	w.vmms.BranchErr = errors.New("not now")
	branch := func() error {
		_, err := w.Branch(t.Context(), id, BranchRequest{Tag: "b", Mode: vm.BranchDiff})
		return err
	}
	if err := branch(); err == nil || strings.Contains(err.Error(), "is open for writing") {
		t.Errorf("a VM that closes its files: %v", err)
	}
	w.vmms.KeepTops = true
	isKilledKeeper(t, w, id, "a refused branch", branch())
	w.KillAll()
	w.checkClean(t)
}

// When the daemon starts a child process, the child has copies of the daemon's descriptors until it
// executes its program. The daemon must not kill the VM because of these copies.
func TestFilesOfAStart(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	w.writers = 0
	id := w.source(t)
	var copies []int
	w.vmms.Keep = func(f *os.File) io.Closer {
		n, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
		}
		copies = append(copies, n)
		return io.NopCloser(nil)
	}
	w.vmms.Starts = func() { // the program is executed
		for _, n := range copies {
			unix.Close(n)
		}
		copies = nil
	}
	if _, err := w.Branch(t.Context(), id, BranchRequest{Tag: "b", Mode: vm.BranchFull}); err != nil {
		t.Error(err)
	}
	if s, err := w.Get(id); err != nil || s.Info().State != Running {
		t.Errorf("the sandbox has ended: %v", err)
	}
	w.KillAll()
	w.checkClean(t)
}

// If a VM no longer uses a disk top, but keeps it open for writing, the VM is killed. The top never
// becomes a layer of a snapshot or of a suspended state.
func TestTopsThatStayWritable(t *testing.T) {
	branch := func(mode vm.BranchMode) func(*world, string) error {
		return func(w *world, id string) error {
			_, err := w.Branch(t.Context(), id, BranchRequest{Tag: "b", Mode: mode})
			return err
		}
	}
	for what, try := range map[string]func(*world, string) error{
		"live branch": branch(vm.BranchLive),
		"full branch": branch(vm.BranchFull),
		"suspension": func(w *world, id string) error {
			_, err := w.Suspend(t.Context(), id)
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, 0)
			defer w.stop()
			w.writers = 0
			id := w.source(t)
			w.branch(t, id, "good", vm.BranchDiff)
			w.vmms.KeepTops = true
			isKilledKeeper(t, w, id, what, try(w, id))
			if list := w.Snapshots().List(); len(list) != 2 {
				t.Errorf("published: %+v", list)
			}
			w.KillAll()
			w.checkClean(t)
		})
	}
}

// If a VM keeps its old top open after a rollback, the VM is killed, so it gets no further tops.
func TestTopsThatStayWritableAfterARollback(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	w.writers = 0
	id := w.source(t)
	w.branch(t, id, "good", vm.BranchDiff)
	w.vmms.KeepTops = true
	_, err := w.Rollback(t.Context(), id, "good", unique.AsBefore)
	if err == nil { // the rollback itself has taken place
		err = errors.New("is open for writing")
	}
	isKilledKeeper(t, w, id, "a rollback", err)
	w.KillAll()
	w.checkClean(t)
}

// If a VM blocks a write to its own file for ever, nothing waits for the file: the branch fails,
// and the VM is killed.
func TestABlockedWriteToABranch(t *testing.T) {
	for _, mode := range []vm.BranchMode{vm.BranchDiff, vm.BranchFull} {
		t.Run(mode.String(), func(t *testing.T) {
			w := newWorld(t, 0)
			defer w.stop()
			w.writers = 0
			id := w.source(t)
			w.vmms.Keep = func(f *os.File) io.Closer { return writertest.Block(t, f) }
			_, err := w.Branch(t.Context(), id, BranchRequest{Tag: "b", Mode: mode})
			isKilledKeeper(t, w, id, "a branch", err)
			if n, _ := w.BranchesInFlight(); n != 0 {
				t.Errorf("%d branches still have a place", n)
			}
			w.KillAll()
			w.checkClean(t)
		})
	}
}

// The VM of a child ends before the child has confirmed. The daemon first notices only that a
// connection broke, but the error must say how the VM ended.
func TestAChildThatDiesIsSaidToHave(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	w.source(t)
	w.vmms.ForkedErr = func(int) error {
		for _, v := range w.vmms.All() {
			go v.End(vm.Exit{Reason: vm.ExitFault, Detail: "out of the blue"})
		}
		return fmt.Errorf("agent forked: %w", io.EOF)
	}
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1}); err == nil ||
		!strings.Contains(err.Error(), "out of the blue") {
		t.Errorf("got %v", err)
	}
}

// ForkSandbox makes a snapshot, which is deleted when the last child is deleted.
func TestForkFromASandbox(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	r, b, err := w.ForkSandbox(t.Context(), id, BranchRequest{Mode: vm.BranchLive}, ForkRequest{N: 3})
	if err != nil || len(r.Sandboxes) != 3 || r.Sandboxes[0].SnapshotTag != b.Info.Tag {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, s := range r.Sandboxes[:2] {
		if err := w.Kill(s.ID); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Snapshots().Detail(b.Info.Tag); err != nil {
		t.Errorf("with a child left: %v", err)
	}
	if err := w.Kill(r.Sandboxes[2].ID); err != nil {
		t.Fatal(err)
	}
	w.Snapshots().Quiesce()
	if list := w.Snapshots().List(); len(list) != 1 {
		t.Errorf("left: %+v", list)
	}
	w.branch(t, id, "b", vm.BranchLive) // the source does not need the snapshot
	w.fork(t, "b")
	w.KillAll()
	w.checkClean(t)
}

// If one child cannot be taken over by another daemon, its siblings keep the transient snapshot
// from which they run.
func TestLostChildLeavesItsSiblings(t *testing.T) {
	w := newWorld(t, 0)
	id := w.source(t)
	r, _, err := w.ForkSandbox(t.Context(), id, BranchRequest{Mode: vm.BranchLive}, ForkRequest{N: 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range r.Sandboxes[1:] {
		s, err := w.Get(info.ID)
		if err == nil {
			// The next daemon leases the sandbox's snapshot before it refuses the sandbox.
			err = s.update(func(r *ledger.Record) { r.Restoring = true })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	w.stop()
	w.start(t, 0)
	defer w.stop()
	if n, err := w.Recover(); n != 2 || err != nil {
		t.Errorf("recovered %d sandboxes, %v", n, err)
	}
	if _, err := w.Get(r.Sandboxes[0].ID); err != nil {
		t.Error(err)
	}
	w.KillAll()
	w.checkClean(t)
}
