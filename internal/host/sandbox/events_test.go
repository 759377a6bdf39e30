package sandbox

import (
	"fmt"
	"slices"
	"testing"

	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/vm"
)

// told waits for an event of the given kind, and returns the sandbox's events up to that event.
func (w *world) told(t *testing.T, id string, last event.Kind) (list []string) {
	t.Helper()
	for f := w.events.Follow(w.events.ID(0)); ; {
		e, missed, err := f.Next(t.Context())
		if err != nil || missed {
			t.Fatalf("after %v: %v, missed %v", list, err, missed)
		}
		if e.Sandbox != id {
			continue
		}
		list = append(list, fmt.Sprintf("%s %s", e.Kind, e.Reason))
		if e.Kind == last {
			return list
		}
	}
}

// Each state that a sandbox enters makes one event, which names the cause. After the deletion of the sandbox
// there are no more events.
func TestEventsOfSandboxes(t *testing.T) {
	w := newWorld(t, 0)
	if _, err := w.Bake(t.Context(), w.bake); err != nil {
		t.Fatal(err)
	}
	lively, crashing, brief := forkOne(t, w, ForkRequest{}), forkOne(t, w, ForkRequest{}),
		forkOne(t, w, ForkRequest{TTL: soon})
	if _, err := w.Rollback(t.Context(), lively, "", unique.AsBefore); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Suspend(t.Context(), lively); err != nil {
		t.Fatal(err)
	}
	w.vmms.Mu.Lock()
	v := w.vmms.Live[w.vmDir(crashing)]
	w.vmms.Mu.Unlock()
	v.End(vm.Exit{Reason: vm.ExitReset, Detail: "guest"})
	if got := w.told(t, crashing, event.SandboxExited); !slices.Equal(got,
		[]string{"sandbox.created ", "sandbox.exited reset"}) {
		t.Errorf("one that ends: %q", got)
	}
	if got := w.told(t, brief, event.SandboxDeleted); !slices.Equal(got,
		[]string{"sandbox.created ", "sandbox.deleted expiry"}) {
		t.Errorf("one with little time: %q", got)
	}
	w.stop()
	before := w.events
	w.start(t, 0)
	if _, err := w.Recover(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Resume(t.Context(), lively); err != nil {
		t.Fatal(err)
	}
	w.KillAll()
	if got := w.told(t, lively, event.SandboxDeleted); !slices.Equal(got,
		[]string{"sandbox.adopted ", "sandbox.restoring resume",
			"sandbox.running resume", "sandbox.deleted delete"}) {
		t.Errorf("with the second daemon: %q", got)
	}
	w.events = before
	if got := w.told(t, lively, event.SandboxSuspended); !slices.Equal(got,
		[]string{"sandbox.created ", "sandbox.restoring rollback",
			"sandbox.running rollback", "sandbox.paused suspend", "sandbox.suspended suspend"}) {
		t.Errorf("with the first daemon: %q", got)
	}
	w.stop()
	w.checkClean(t)
}

// Events name the owner of their sandbox or branch, so that the ring can divide its space among owners.
func TestEventsHaveAnOwner(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	if _, err := w.Bake(t.Context(), w.bake); err != nil {
		t.Fatal(err)
	}
	made, err := w.Fork(as(t, "token:a"), ForkRequest{Tag: "p", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := made.Sandboxes[0].ID
	w.branch(t, id, "b", vm.BranchDiff)
	if err := w.Kill(id); err != nil {
		t.Fatal(err)
	}
	for f := w.events.Follow(w.events.ID(0)); ; {
		e, _, err := f.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if e.Owner != "token:a" {
			t.Errorf("%s of %q", e.Kind, e.Owner)
		}
		if e.Kind == event.SandboxDeleted {
			break
		}
	}
	w.KillAll()
}
