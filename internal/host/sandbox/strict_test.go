package sandbox

import (
	"errors"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

var (
	repeating = &agentproto.Unique{Repeats: []agentproto.Generator{{PID: 7, Program: "server", Library: "libgnutls"}}}
	renewed   = &agentproto.Unique{Reseeded: []agentproto.Generator{{PID: 7, Program: "server",
		Library: "libcrypto.so.3"}}}
)

// finds sets the findings that all guests report from now on.
func (w *world) finds(found *agentproto.Unique) {
	w.vmms.Mu.Lock()
	defer w.vmms.Mu.Unlock()
	w.vmms.Unique = found
}

func TestAStrictForkFailsUnlessAllIsKnownToBeUnique(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	w.source(t)
	for name, c := range map[string]struct {
		found  *agentproto.Unique
		strict unique.Strict
		fails  string
	}{
		"nothing is found":          {&agentproto.Unique{}, unique.Refuse, ""},
		"all is reseeded":           {renewed, unique.Refuse, ""},
		"something repeats":         {repeating, unique.Refuse, "libgnutls (process 7 of program server)"},
		"something may be left out": {&agentproto.Unique{More: 1}, unique.Refuse, "no room"},
		"nothing is known":          {nil, unique.Refuse, "does not look"},
		"it is only reported":       {repeating, unique.Report, ""},
		"nothing is said":           {repeating, unique.AsBefore, ""},
	} {
		w.finds(c.found)
		r, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, Strict: c.strict})
		var refused *unique.Error
		switch {
		case c.fails != "" && (!errors.As(err, &refused) || !strings.Contains(err.Error(), c.fails)):
			t.Errorf("%s: %v, want %q", name, err, c.fails)
		case c.fails == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.fails == "" && r.Sandboxes[0].Unique != c.found:
			t.Errorf("%s: Info has %+v, want %+v", name, r.Sandboxes[0].Unique, c.found)
		}
	}
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, Strict: "sometimes"}); err == nil ||
		!strings.Contains(err.Error(), "unique") {
		t.Errorf("an unknown word: %v", err)
	}
	w.KillAll()
	w.checkClean(t)
}

func TestStrictHoldsForTheRestOfASandboxAndItsBranches(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	w.source(t)
	w.finds(renewed)
	r, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, Strict: unique.Refuse})
	if err != nil {
		t.Fatal(err)
	}
	id := r.Sandboxes[0].ID
	w.branch(t, id, "b", vm.BranchDiff)
	w.finds(repeating)
	var refused *unique.Error
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "b", N: 1}); !errors.As(err, &refused) {
		t.Errorf("a fork of a strict sandbox's branch: %v", err)
	}
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "b", N: 1, Strict: unique.Report}); err != nil {
		t.Errorf("a fork of it that is to be reported only: %v", err)
	}
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Resume(t.Context(), id); !errors.As(err, &refused) {
		t.Errorf("the resume: %v", err)
	}
	if err := w.SetStrict(t.Context(), id, unique.Report); err != nil {
		t.Fatal(err)
	}
	info, err := w.Resume(t.Context(), id)
	if err != nil || info.Unique != repeating || info.Strict {
		t.Errorf("the resume without strict: %+v, %v", info, err)
	}
	w.finds(&agentproto.Unique{})
	back, err := w.Rollback(t.Context(), id, "", unique.AsBefore)
	if err != nil || back.Info.Unique == nil || len(back.Info.Unique.Repeats) > 0 {
		t.Errorf("a rollback to before those programs: %+v, %v", back.Info.Unique, err)
	}
	for _, to := range []string{"none", "other"} {
		if _, err := w.Rollback(t.Context(), id, to, unique.Refuse); err == nil || w.info(t, id).Strict {
			t.Errorf("a rollback to %s, which leaves the sandbox unchanged: %+v, %v", to, w.info(t, id), err)
		}
	}
	_, err = w.Promote(t.Context(), id, "sb-none", BranchRequest{}, unique.Refuse)
	if err == nil || w.info(t, id).Strict {
		t.Errorf("a promotion of no sandbox: %+v, %v", w.info(t, id), err)
	}
	if back, err = w.Rollback(t.Context(), id, "", unique.Refuse); err != nil || !back.Info.Strict {
		t.Errorf("a rollback that makes the sandbox strict: %+v, %v", back.Info, err)
	}
	w.finds(repeating)
	if _, err := w.Rollback(t.Context(), id, "", unique.AsBefore); !errors.As(err, &refused) {
		t.Errorf("a strict rollback: %v", err)
	}
	w.KillAll()
	w.checkClean(t)
}
