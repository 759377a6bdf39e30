package sandbox

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/unique"
)

// Labels stay with their sandbox through all operations, and do not appear on other sandboxes.
func TestLabels(t *testing.T) {
	w := newWorld(t, 0)
	mustBake(t, w)
	ctx := t.Context()
	id := forkOne(t, w, ForkRequest{Labels: map[string]string{"job": "7", "owner": "a"}})
	is := func(when string, want map[string]string) {
		t.Helper()
		if s, err := w.Get(id); err != nil || !maps.Equal(s.Info().Labels, want) {
			t.Errorf("%s: %v, %v; want %v", when, s, err, want)
		}
	}
	is("after the fork", map[string]string{"job": "7", "owner": "a"})
	eight := "8"
	if _, err := w.ChangeLabels(ctx, id, map[string]*string{"job": &eight, "owner": nil, "none": nil}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"job": "8"}
	is("changed", want)
	if _, err := w.Rollback(ctx, id, "", unique.AsBefore); err != nil {
		t.Fatal(err)
	}
	is("rolled back", want)
	w.stop()
	w.start(t, 0)
	if _, err := w.Recover(); err != nil {
		t.Fatal(err)
	}
	is("taken over", want)
	r, _, err := w.ForkSandbox(ctx, id, BranchRequest{}, ForkRequest{N: 1})
	if err != nil || len(r.Sandboxes[0].Labels) != 0 {
		t.Errorf("a branch of it: %v, %v", r.Sandboxes, err)
	}
	if _, err := w.Suspend(ctx, id); err != nil {
		t.Fatal(err)
	}
	nine := "9"
	if _, err := w.ChangeLabels(ctx, id, map[string]*string{"job": &nine}); err != nil {
		t.Fatal(err)
	}
	w.stop()
	w.start(t, 0)
	if _, err := w.Recover(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Resume(ctx, id); err != nil {
		t.Fatal(err)
	}
	is("changed while suspended, and brought back", map[string]string{"job": "9"})
	w.KillAll()
	w.stop()
	w.checkClean(t)
}

func TestWrongLabels(t *testing.T) {
	many, long := map[string]string{}, map[string]string{}
	for i := range ledger.MaxLabels + 1 {
		many[fmt.Sprint(i)] = ""
	}
	for i := range 16 {
		long[fmt.Sprint(i)] = strings.Repeat("x", 256)
	}
	for _, labels := range []map[string]string{
		many, long, {"": "x"}, {"-a": "x"}, {"a=b": "x"}, {"a b": "x"}, {strings.Repeat("a", 64): "x"},
		{"a": strings.Repeat("x", 257)}, {"a": "x\ny"},
		{"a": "\xff"}, {"a": "\x1b[2J"},
	} {
		err := (&ForkRequest{Tag: "p", N: 1, Labels: labels}).check()
		if bad := (*invalid.Error)(nil); !errors.As(err, &bad) || bad.Field != "labels" {
			t.Errorf("%.80q: %v", labels, err)
		}
	}
	if err := ledger.CheckLabels(map[string]string{"a": "", "example.com/Team-1": "ü = x"}); err != nil {
		t.Error(err)
	}
}
