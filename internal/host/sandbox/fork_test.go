package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/proto/vm"
)

// The children of a large fork start in waves. A child gets its identity only when all children of
// its wave are restored. The next wave begins only when all children of a wave have their identity.
// A child that cannot be restored does not delay the other children.
func TestChildrenStartInWaves(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	const n, bad = 20, 3 // the child with the number bad cannot be restored; it is in the first wave
	w.wave = 8
	w.vmms.RestoreErr = func(i int) error {
		if i == bad {
			return errors.New("no room")
		}
		return nil
	}
	told := 1 // begins at 1, for the child that cannot be restored: it gets no identity
	w.vmms.ForkedErr = func(int) error {
		w.vmms.Mu.Lock()
		defer w.vmms.Mu.Unlock()
		want := min(told/w.wave*w.wave+w.wave, n)
		if told++; w.vmms.Restores != want {
			t.Errorf("%d children are restored, and not %d, when number %d is told who it is", w.vmms.Restores, want, told)
		}
		return nil
	}
	r, err := w.Fork(context.Background(), ForkRequest{Tag: "p", N: n, AllowPartial: true})
	if err != nil || len(r.Sandboxes) != n-1 {
		t.Errorf("fork: %d sandboxes, %v", len(r.Sandboxes), err)
	}
	w.KillAll()
	w.checkClean(t)
}

// If a client disconnects, its fork is cancelled, even with AllowPartial, because no client would
// know of the children.
func TestClientLeavesAPartialFork(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	const n = 3
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	w.vmms.ForkedErr = func(i int) error {
		if i < n {
			return nil
		}
		leave()
		return ctx.Err()
	}
	r, err := w.Fork(ctx, ForkRequest{Tag: "p", N: n, AllowPartial: true})
	if !errors.Is(err, context.Canceled) || len(r.Sandboxes) != 0 {
		t.Errorf("fork: %d sandboxes, %v", len(r.Sandboxes), err)
	}
	w.checkClean(t)
}

// Children with a large environment write pages that other children do not write. So the daemon
// does not ask their VMMs which pages they have written.
func TestNobodyLearnsFromALargeEnvironment(t *testing.T) {
	w := newWorld(t, 0)
	mustBake(t, w)
	w.vmms.Writes = []vm.Range{{GPA: vm.PageSize, Length: vm.PageSize}}
	for _, c := range []struct {
		value string
		asked int
	}{{strings.Repeat("x", 64<<10), 0}, {"x", 3}} {
		req := ForkRequest{Tag: "p", N: 4, Env: map[string]string{"NAME": c.value}}
		if _, err := w.Fork(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if w.vmms.WritesRead != c.asked {
			t.Errorf("with an environment of %d bytes %d children are asked, want %d", len(c.value), w.vmms.WritesRead, c.asked)
		}
	}
	w.KillAll()
	w.stop()
}

// The VMMs of later children receive the list of pages that the first three children of a snapshot
// have written. If the daemon cannot find out which pages these are, forks still succeed.
func TestLaterChildrenAreToldTheFirstWrites(t *testing.T) {
	for _, broken := range []error{nil, errors.New("no page map")} {
		w := newWorld(t, 0)
		mustBake(t, w)
		w.vmms.Writes, w.vmms.WritesErr = []vm.Range{{GPA: vm.PageSize, Length: 2 * vm.PageSize}}, broken
		for _, n := range []int{1, 2, 3} {
			if _, err := w.Fork(context.Background(), ForkRequest{Tag: "p", N: n}); err != nil {
				t.Fatal(err)
			}
		}
		told, asked := w.vmms.Writes, 3
		if broken != nil {
			told, asked = nil, 6
		}
		if want := [][]vm.Range{nil, nil, nil, told, told, told}; !reflect.DeepEqual(w.vmms.Expected, want) ||
			w.vmms.WritesRead != asked {
			t.Errorf("VMMs were told %v, want %v; asked %d times", w.vmms.Expected, want, w.vmms.WritesRead)
		}
		w.KillAll()
		w.stop()
	}
}

// The environment is part of every child's record, so it must be small. With a large environment, a
// fork of a thousand children could fill the run directory, or the memory of the next daemon. A
// large environment is refused before any child starts.
func TestEnvironmentsAreBounded(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	for _, value := range []string{strings.Repeat("x", ledger.MaxEnv), strings.Repeat("\x01", ledger.MaxEnv/6)} {
		_, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, Env: map[string]string{"NAME": value}})
		var e *invalid.Error
		if !errors.As(err, &e) || e.Field != "env" {
			t.Errorf("%d bytes: %v, want an error of env", len(value), err)
		}
	}
	r, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, Env: map[string]string{"NAME": strings.Repeat("x",
		ledger.MaxEnv-16)}})
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(w.vmDir(r.Sandboxes[0].ID), ledger.File))
	if err != nil || info.Size() > ledger.MaxEnv+4096 {
		t.Errorf("the record has %d bytes, %v", info.Size(), err)
	}
	w.KillAll()
	w.checkClean(t)
}
