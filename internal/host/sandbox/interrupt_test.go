package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/state"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/vm"
)

// A sandbox can be deleted at any moment of its suspension or its resumption. The deletion never
// returns a *NotFoundError, and nothing of the sandbox is left.
func TestDeletedWhileSuspending(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	for i := range 60 {
		id := w.fork(t, "p")
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				if _, err := w.Suspend(t.Context(), id); err != nil {
					return
				}
				if _, err := w.Resume(t.Context(), id); err != nil {
					return
				}
			}
		}()
		time.Sleep(time.Duration(i) * 300 * time.Microsecond) // the sandbox is deleted at a different moment each time
		if err := w.Kill(id); err != nil {
			t.Errorf("delete: %v", err)
		}
		<-done
		if _, err := w.Get(id); err == nil {
			t.Fatal("it survived")
		}
	}
	w.checkClean(t)
}

// The sandbox is deleted at the two critical moments: when its suspended state takes effect, and
// when its guest confirms after a resumption.
func TestDeletedAsItsStateChanges(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	w.vmms.Killing = func() {
		w.vmms.Killing = nil
		if s, err := w.Get(id); err != nil || s.Info().State != Suspended {
			t.Errorf("as its VM is ended: %v", err)
		}
		if err := w.Kill(id); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Errorf("suspend: %v", err)
	}
	w.checkClean(t)

	id = w.fork(t, "p")
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.vmms.ForkedErr = func(int) error { return w.Kill(id) }
	var state *StateError
	if _, err := w.Resume(t.Context(), id); !errors.As(err, &state) || state.State != Stopping {
		t.Errorf("resume: %v", err)
	}
	w.checkClean(t)
}

// If the expiry of a sandbox passes during or after its suspension, the sandbox is deleted.
func TestExpiresWhileSuspended(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	r, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, TTL: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := w.Suspend(t.Context(), r.Sandboxes[0].ID); err != nil {
			break
		}
		if _, err := w.Resume(t.Context(), r.Sandboxes[0].ID); err != nil {
			break
		}
	}
	for deadline := time.Now().Add(30 * time.Second); w.has(r.Sandboxes[0].ID); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it outlives its deadline")
		}
	}
	w.checkClean(t)
}

// If an operation on a sandbox ends a request to the sandbox, the error of the request names the
// operation.
func TestRequestsThatAreCutOff(t *testing.T) {
	for by, op := range map[state.Cutter]func(w *world, id string) error{
		state.ByDelete:  func(w *world, id string) error { return w.Kill(id) },
		state.BySuspend: func(w *world, id string) error { _, err := w.Suspend(t.Context(), id); return err },
		state.ByRollback: func(w *world, id string) error {
			_, err := w.Rollback(t.Context(), id, "", unique.AsBefore)
			return err
		},
	} {
		w := newWorld(t, 0)
		id := w.source(t)
		begun, failed := make(chan struct{}), make(chan error)
		go func() {
			failed <- w.Use(t.Context(), id, "exec in", func(ctx context.Context, _ agentclient.DialFunc) error {
				close(begun)
				<-ctx.Done()
				return errors.New("protocol error: incomplete envelope")
			})
		}()
		<-begun
		if err := op(w, id); err != nil {
			t.Fatalf("%s: %v", by, err)
		}
		var cut *CutOffError
		if err := <-failed; !errors.As(err, &cut) || cut.By != by || cut.ID != id || cut.Op != "exec in" {
			t.Errorf("a request to a sandbox that is %s: %v", by, err)
		}
		w.KillAll()
		w.checkClean(t)
		w.stop()
	}
}

// If a request times out because its sandbox was paused in the meantime, the error says so. If a
// request times out for another reason, the error names the sandbox whose guest did not answer.
func TestRequestsToASandboxThatIsPausedMeanwhile(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	ask := func(meanwhile func()) error {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		return w.Use(ctx, id, "ping", func(ctx context.Context, _ agentclient.DialFunc) error {
			meanwhile()
			<-ctx.Done()
			return ctx.Err()
		})
	}
	err := ask(func() {})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), id) {
		t.Errorf("a guest that is silent: %v", err)
	}
	err = ask(func() {
		if _, err := w.Pause(context.WithoutCancel(t.Context()), id); err != nil {
			t.Error(err)
		}
	})
	var state *StateError
	if !errors.As(err, &state) || state.State != Paused || state.ID != id {
		t.Errorf("a sandbox that was paused: %v", err)
	}
	w.KillAll()
	w.checkClean(t)
}

// If a branch fails because its sandbox is deleted, the error says that the sandbox was deleted,
// and not that a process was killed.
func TestBranchOfADeletedSandbox(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	s, v := w.torn(t)
	v.branch = func() error { return errors.Join(errors.New("gone"), w.Kill(s.id)) }
	var cut *CutOffError
	_, err := w.Branch(t.Context(), s.id, BranchRequest{Mode: vm.BranchLive})
	if !errors.As(err, &cut) || cut.By != state.ByDelete {
		t.Errorf("branch: %v", err)
	}
	w.checkClean(t)
}

// If a daemon is killed before it has answered the request for a fork, the next daemon kills all
// children, even those that had confirmed.
func TestRestartDuringAFork(t *testing.T) {
	const n = 8
	w := newWorld(t, 0)
	mustBake(t, w)
	kept := w.fork(t, "p")
	hang := make(chan struct{})
	before := len(w.vmms.Forked)
	w.vmms.ForkedErr = func(i int) error {
		if i == before+n {
			<-hang // keeps the last child from confirming
		}
		return nil
	}
	forked := make(chan error)
	go func() {
		_, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: n})
		forked <- err
	}()
	records := func() int {
		files, _ := filepath.Glob(filepath.Join(w.cfg.RunDir, "*", ledger.File))
		return len(files)
	}
	for deadline := time.Now().Add(30 * time.Second); records() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the other children did not confirm")
		}
	}
	w.Snapshots().Close() // simulates the death of the daemon
	w.start(t, 0)
	defer w.stop()
	if alive, err := w.Recover(); alive != 1 || err != nil {
		t.Errorf("recovered %d sandboxes, %v", alive, err)
	}
	if !w.has(kept) {
		t.Error("a sandbox from before the fork is lost")
	}
	if notes, _ := filepath.Glob(filepath.Join(w.cfg.RunDir, ledger.ForkPrefix+"*")); len(notes) != 0 {
		t.Errorf("left: %v", notes)
	}
	close(hang)
	<-forked // the fork of the daemon that died has ended
	w.KillAll()
	if list := w.vmms.Count(); list != 0 {
		t.Errorf("%d VMs are left", list)
	}
}

// If the snapshot of a running sandbox cannot be used when a daemon starts, the sandbox continues.
// Operations that need the snapshot fail, and their errors say that the snapshot cannot be used.
// When it can be used again, these operations work again.
func TestRestartWithoutTheSnapshot(t *testing.T) {
	w := newWorld(t, 0)
	id := w.source(t)
	w.stop()
	bases := filepath.Join(w.dir, "state", "bases") // directory of the store's base images
	if err := os.Rename(bases, bases+".away"); err != nil {
		t.Fatal(err)
	}
	w.start(t, 0)
	defer w.stop()
	if n, err := w.Recover(); n != 1 || err != nil {
		t.Fatalf("recovered %d sandboxes, %v", n, err)
	}
	if err := w.Use(t.Context(), id, "use", nothing); err != nil {
		t.Errorf("use: %v", err)
	}
	var lease *failure.LeaseError
	if _, err := w.Branch(t.Context(), id, BranchRequest{Mode: vm.BranchLive}); !errors.As(err, &lease) ||
		lease.Op != "branch" {
		t.Errorf("branch: %v", err)
	}
	if _, err := w.Suspend(t.Context(), id); !errors.As(err, &lease) || lease.Op != "suspend" {
		t.Errorf("suspend: %v", err)
	}
	if err := w.Use(t.Context(), id, "use", nothing); err != nil {
		t.Errorf("use after a suspension that failed: %v", err)
	}
	if err := errors.Join(os.RemoveAll(bases), os.Rename(bases+".away", bases)); err != nil {
		t.Fatal(err)
	}
	w.branch(t, id, "b", vm.BranchLive)
	w.KillAll()
	w.checkClean(t)
}

// For a suspended sandbox, each operation that needs a VM returns an error, which names the
// sandbox's state.
func TestOperationsOnASuspendedSandbox(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for op, f := range map[string]func() error{
		"branch":    func() error { _, err := w.Branch(t.Context(), id, BranchRequest{Mode: vm.BranchLive}); return err },
		"roll back": func() error { _, err := w.Rollback(t.Context(), id, "", unique.AsBefore); return err },
		"pause":     func() error { _, err := w.Pause(t.Context(), id); return err },
		"suspend":   func() error { _, err := w.Suspend(t.Context(), id); return err },
		"measure":   func() error { _, err := w.Stats(t.Context(), id); return err },
		"use":       func() error { return w.Use(t.Context(), id, "use", nothing) },
	} {
		var state *StateError
		if err := f(); !errors.As(err, &state) || state.State != Suspended || state.Op != op {
			t.Errorf("%s: %v", op, err)
		}
	}
	w.KillAll()
	w.checkClean(t)
}
