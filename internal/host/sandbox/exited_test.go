package sandbox

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/loglimit"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/proto/vm"
)

// end ends the VM of a sandbox, and waits until the manager has noticed it.
func (w *world) end(t *testing.T, id string) {
	t.Helper()
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	s.live.vmm.(*vmfake.VMM).End(vm.Exit{Reason: vm.ExitPowerOff})
	w.awaitExit(t, id)
}

// hasEnv reports whether one of the sandboxes that still exist has an environment.
func (w *world) hasEnv(ids []string) bool {
	for _, id := range ids {
		if s, err := w.Get(id); err == nil {
			s.mu.Lock()
			has := s.record.Env != nil
			s.mu.Unlock()
			if has {
				return true
			}
		}
	}
	return false
}

// Exited sandboxes stay in the list without their environment. Their number is limited for each
// owner: the sandboxes that exited first are deleted first.
func TestExitedSandboxesAreBounded(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	other := w.source(t)
	w.end(t, other)
	const more = 3
	first, err := w.Fork(owner.In(t.Context(), owner.Owner{Name: "token:x"}), ForkRequest{Tag: "p", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	// The limit is 3, because one sandbox runs all the time, and a sandbox that is being deleted still
	// counts.
	ctx := owner.In(t.Context(), owner.Owner{Name: "token:x", Most: 3})
	var ids []string
	for range maxExited + more {
		r, err := w.Fork(ctx, ForkRequest{Tag: "p", N: 1, Env: map[string]string{"A": "a"}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, r.Sandboxes[0].ID)
		w.end(t, ids[len(ids)-1])
	}
	end := time.Now().Add(30 * time.Second)
	for ; len(w.List()) > maxExited+2 || w.hasEnv(ids); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d sandboxes are listed, want %d; one has an environment: %v", len(w.List()), maxExited+2, w.hasEnv(ids))
		}
	}
	if _, err := w.Get(other); err != nil {
		t.Errorf("the sandbox of another owner: %v", err)
	}
	w.end(t, first.Sandboxes[0].ID) // this sandbox was made first, but exits last
	ids = append(ids[1:], first.Sandboxes[0].ID)
	for end := time.Now().Add(30 * time.Second); len(w.List()) > maxExited+1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d sandboxes are listed, want %d", len(w.List()), maxExited+1)
		}
	}
	for i, id := range ids {
		if _, err := w.Get(id); (err == nil) != (i >= more) {
			t.Errorf("sandbox %d of %d: %v", i, len(ids), err)
		}
	}
	w.KillAll()
	w.checkClean(t)
}

// A rollback sets the strictness of a sandbox. The sandbox keeps this strictness, even if its guest
// ends itself and the sandbox is resumed from a suspended state that is older than the rollback.
func TestStrictnessOfARollbackStays(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	w.finds(renewed)
	id := w.source(t)
	w.branch(t, id, "good", vm.BranchDiff)
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Rollback(t.Context(), id, "good", unique.Refuse); err != nil {
		t.Fatal(err)
	}
	w.end(t, id)
	w.finds(repeating)
	if _, err := w.Resume(t.Context(), id); err == nil {
		t.Error("a sandbox whose generators repeat was resumed, although its rollback had set strict")
	}
	w.KillAll()
}

// Guests that end themselves cannot fill the daemon's log, and the text with which a VMM explains
// its end is shortened.
func TestLinesAboutExits(t *testing.T) {
	w := newWorld(t, 0)
	mustBake(t, w)
	var log strings.Builder
	const most = 3
	w.Manager.cfg.Log, w.exits = slog.New(slog.NewTextHandler(&log, nil)), loglimit.New(0, most)
	for range 2 * most {
		s, err := w.Get(forkOne(t, w, ForkRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		s.live.vmm.(*vmfake.VMM).End(vm.Exit{Reason: vm.ExitInternal, Detail: strings.Repeat("x", 32<<10)})
		w.awaitExit(t, s.id)
	}
	w.stop() // waits until the lines are written
	if n := strings.Count(log.String(), "sandbox exited"); n != most {
		t.Errorf("%d lines, want %d", n, most)
	}
	if log.Len() > most*2<<10 {
		t.Errorf("%d lines have %d bytes", most, log.Len())
	}
}
