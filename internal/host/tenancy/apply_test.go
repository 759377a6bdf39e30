package tenancy

import (
	"errors"
	"slices"
	"testing"

	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/proto/vm"
)

// The base of two sides is their nearest common ancestor. If this ancestor cannot be determined,
// there is an error.
func TestBase(t *testing.T) {
	h := newHost(t)
	v := h.For(owner.Owner{Name: "token:a"})
	d, _ := newDiffer(t, h, vmfake.Differs())
	m := h.manager
	fork := func(tag string) string {
		t.Helper()
		f, err := v.Fork(t.Context(), sandbox.ForkRequest{Tag: tag, N: 1})
		if err != nil {
			t.Fatal(err)
		}
		return f.Sandboxes[0].ID
	}
	branch := func(id, tag string, mode vm.BranchMode) string {
		t.Helper()
		b, err := v.Branch(t.Context(), id, sandbox.BranchRequest{Tag: tag, Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		return b.Info.Tag
	}
	base := func(from, onto string) (string, error) {
		t.Helper()
		r, err := v.Apply(t.Context(), d, ApplyRequest{ID: onto, From: from, DryRun: true})
		return r.Base, err
	}
	a, twin := fork("p"), fork("p")
	branch(a, "one", vm.BranchLive)
	child, second := fork("one"), fork("one")
	branch(a, "two", vm.BranchDiff)
	late := fork("two")
	branch(child, "leaf", vm.BranchLive)
	grandchild := fork("leaf")
	copied, _, err := v.ForkSandbox(t.Context(), a, sandbox.BranchRequest{Mode: vm.BranchLive}, sandbox.ForkRequest{N: 1})
	if err != nil {
		t.Fatal(err)
	}
	of := copied.Sandboxes[0]
	for _, c := range []struct{ from, onto, want string }{
		{twin, a, "p"}, {a, twin, "p"}, {child, a, "one"}, {a, child, "one"}, {child, second, "one"}, {late, a, "two"},
		{child, late, "one"}, {grandchild, a, "one"}, {grandchild, child, "leaf"}, {grandchild, late, "one"},
		{grandchild, twin, "p"}, {"one", a, "one"}, {"two", child, "one"}, {"leaf", a, "one"}, {"p", a, "p"},
		{of.ID, a, of.SnapshotTag}, {of.ID, child, "one"},
	} {
		if got, err := base(c.from, c.onto); err != nil || got != c.want {
			t.Errorf("%s onto %s: base %q, want %q, %v", c.from, c.onto, got, c.want, err)
		}
	}

	// After a rollback, the sandbox could have merged the layers of its branches.
	none := (*NoBaseError)(nil)
	if _, err := v.Rollback(t.Context(), a, "p", unique.Report); err != nil {
		t.Fatal(err)
	}
	if got, err := base(child, a); !errors.As(err, &none) {
		t.Errorf("after a rollback: base %q, %v", got, err)
	}
	r, err := v.Apply(t.Context(), d, ApplyRequest{ID: a, From: child, Base: "p", DryRun: true})
	if err != nil || r.Base != "p" {
		t.Errorf("a named base: %+v, %v", r, err)
	}

	// A deleted base is not replaced with an older one.
	for _, id := range []string{child, second} {
		if err := v.Kill(id); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := base(grandchild, late); err != nil || got != "one" {
		t.Errorf("base %q, %v", got, err)
	}
	if err := v.DeleteSnapshot("one", store.DeleteForce); err != nil {
		t.Fatal(err)
	}
	if got, err := base(grandchild, late); !errors.As(err, &none) {
		t.Errorf("after the deletion: base %q, %v", got, err)
	}
	if n := len(m.List()); n != 5 {
		t.Errorf("%d sandboxes are left, want 5", n)
	}
	m.Snapshots().Quiesce()
	var tags []string
	for _, s := range v.Snapshots() {
		if !s.Transient {
			tags = append(tags, s.Tag)
		}
	}
	slices.Sort(tags)
	if want := []string{"leaf", "p", "two"}; !slices.Equal(tags, want) {
		t.Errorf("snapshots %v, want %v", tags, want)
	}
}
