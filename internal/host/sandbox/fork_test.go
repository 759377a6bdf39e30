package sandbox

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/vm"
)

// No child is told who it is while others of its fork are not restored. One that could not be
// restored keeps nobody waiting.
func TestAllChildrenRunBeforeOneIsConfirmed(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	const n = 20
	w.vmms.RestoreErr = func(i int) error {
		if i == n/2 {
			return errors.New("no room")
		}
		return nil
	}
	w.vmms.ForkedErr = func(int) error {
		w.vmms.Mu.Lock()
		defer w.vmms.Mu.Unlock()
		if w.vmms.Restores < n {
			t.Errorf("a child is told who it is when %d of %d are restored", w.vmms.Restores, n)
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

// A client that leaves calls its fork off, also one that would keep a part: nobody would know of
// it.
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

// Children with a large environment write pages that others do not write. They are not asked.
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

// What the first three children of a snapshot write, the VMMs of later ones are told. That nobody
// can say so fails no fork.
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
		if want := [][]vm.Range{nil, nil, nil, told, told, told}; !reflect.DeepEqual(w.vmms.Expected, want) || w.vmms.WritesRead != asked {
			t.Errorf("VMMs were told %v, want %v; asked %d times", w.vmms.Expected, want, w.vmms.WritesRead)
		}
		w.KillAll()
		w.stop()
	}
}
