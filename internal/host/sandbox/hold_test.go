package sandbox

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/netproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

func makeHold(t *testing.T, answer string) netproto.Hold {
	t.Helper()
	h, err := netproto.ParseHold([]string{"api.example.com"}, answer)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (w *world) effects(t *testing.T, id string) netproto.Effects {
	t.Helper()
	link, err := w.Link(id)
	if err != nil {
		t.Fatal(err)
	}
	e, err := link.Effects(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// A hold stays with its sandbox through all operations, even after the daemon and forkd-net have
// been killed. Branches and their forks inherit it, and a new policy does not end it. Only a
// release ends it.
func TestAHoldStaysUntilItsRelease(t *testing.T) {
	w := newOnline(t)
	guests := &told{}
	w.vmms.Told = guests.hear
	mustBake(t, w)
	r, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, Hold: makeHold(t, "record")})
	if err != nil {
		t.Fatal(err)
	}
	id := r.Sandboxes[0].ID
	w.wantAnswer(t, id, "public record")
	guests.wait(t, agentproto.OpTrust, 1)
	if e := w.effects(t, id); len(e.List) != 1 || e.Missed != 2 {
		t.Errorf("%+v", e)
	}

	w.branch(t, id, "b", vm.BranchLive)
	w.wantAnswer(t, w.forkOne(t, "b", nil), "public record")
	child := w.forkOne(t, "b", setting(t, "", "pypi.org"))
	w.wantAnswer(t, child, "allow record")
	other, err := w.Fork(t.Context(), ForkRequest{Tag: "b", N: 1, Hold: makeHold(t, "wait")})
	if err != nil {
		t.Fatal(err)
	}
	w.wantAnswer(t, other.Sandboxes[0].ID, "public wait")
	if _, err := w.SetNetwork(t.Context(), child, *setting(t, "public")); err != nil {
		t.Fatal(err)
	}
	w.wantAnswer(t, child, "public record")

	w.stop()
	w.start(t, 0)
	if _, err := w.Recover(); err != nil {
		t.Fatal(err)
	}
	w.wantAnswer(t, id, "public record")
	if err := syscall.Kill(w.net.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.wantAnswer(t, id, "public record")
	if _, err := w.Rollback(t.Context(), id, "p", unique.AsBefore); err != nil { // p has no hold
		t.Fatal(err)
	}
	w.wantAnswer(t, id, "public record")
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if e := w.effects(t, id); len(e.List) != 0 {
		t.Errorf("suspended: %+v", e)
	}
	w.stop()
	w.start(t, 0)
	if _, err := w.Recover(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.wantAnswer(t, id, "public record")

	i, err := w.ReleaseEffects(t.Context(), id)
	if err != nil || i.Network.Hold.On() {
		t.Fatalf("%+v, %v", i.Network, err)
	}
	w.wantAnswer(t, id, "public")
	w.wantAnswer(t, child, "public record")
	w.stop()
	w.start(t, 0)
	if _, err := w.Recover(); err != nil {
		t.Fatal(err)
	}
	w.wantAnswer(t, id, "public")
}

// A fork of a held branch can hold more hosts, but still holds the hosts that the branch holds.
func TestAForkAddsToAHold(t *testing.T) {
	w := newOnline(t)
	defer w.stop()
	defer w.KillAll()
	w.vmms.Told = (&told{}).hear
	mustBake(t, w)
	r, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, Hold: makeHold(t, "refuse")})
	if err != nil {
		t.Fatal(err)
	}
	w.branch(t, r.Sandboxes[0].ID, "b", vm.BranchLive)
	var names []string
	for i := range netproto.MaxHeldHosts {
		names = append(names, fmt.Sprintf("h%d.example.com", i))
	}
	fork := func(n int) (Info, error) {
		more, err := netproto.ParseHold(names[:n], "record")
		if err != nil {
			t.Fatal(err)
		}
		r, err := w.Fork(t.Context(), ForkRequest{Tag: "b", N: 1, Hold: more})
		if err != nil {
			return Info{}, err
		}
		return r.Sandboxes[0], nil
	}
	i, err := fork(netproto.MaxHeldHosts - 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := netproto.Texts(i.Network.Hold.Hosts); len(got) != netproto.MaxHeldHosts ||
		!slices.Contains(got, "api.example.com") || i.Network.Hold.Answer != netproto.AnswerRecord {
		t.Errorf("%v %v", got, i.Network.Hold.Answer)
	}
	if _, err := fork(netproto.MaxHeldHosts); err == nil || !strings.Contains(err.Error(), "hold_effects.hosts") {
		t.Errorf("too many hosts: %v", err)
	}
}

// A hold can be released while its sandbox is suspended. Forks of the suspended sandbox get the
// hold that the sandbox has at the time of the fork.
func TestReleaseOfASuspendedSandbox(t *testing.T) {
	w := newOnline(t)
	defer w.stop()
	defer w.KillAll()
	w.vmms.Told = (&told{}).hear
	mustBake(t, w)
	r, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, Hold: makeHold(t, "wait")})
	if err != nil {
		t.Fatal(err)
	}
	id := r.Sandboxes[0].ID
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	copied := func() (id string) {
		t.Helper()
		err := w.With(t.Context(), r.Sandboxes[0].ID, func(h *Held) error {
			copies, err := h.Fork(t.Context(), ForkRequest{N: 1})
			if err == nil {
				id = copies.Sandboxes[0].ID
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	w.wantAnswer(t, copied(), "public wait")
	if _, err := w.ReleaseEffects(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.wantAnswer(t, copied(), "public")
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.wantAnswer(t, id, "public")
}

// A sandbox that continues from the state of a held child has no hold. The child keeps its hold.
func TestPromotionOfAHeldChild(t *testing.T) {
	w := newOnline(t)
	defer w.stop()
	defer w.KillAll()
	w.vmms.Told = (&told{}).hear
	mustBake(t, w)
	id := w.forkOne(t, "p", nil)
	forked, _, err := w.ForkSandbox(t.Context(), id, BranchRequest{Mode: vm.BranchDiff},
		ForkRequest{N: 1, Hold: makeHold(t, "refuse")})
	if err != nil {
		t.Fatal(err)
	}
	child := forked.Sandboxes[0].ID
	w.wantAnswer(t, child, "public refuse")
	w.wantAnswer(t, id, "public")
	if _, err := w.Promote(t.Context(), id, child, BranchRequest{Mode: vm.BranchDiff}, unique.AsBefore); err != nil {
		t.Fatal(err)
	}
	w.wantAnswer(t, id, "public")
	w.wantAnswer(t, child, "public refuse")
}

// A snapshot that is baked from the disk of a held snapshot inherits the hold, even if the bake
// sets another network.
func TestABakeKeepsAHold(t *testing.T) {
	w := newOnline(t)
	defer w.stop()
	defer w.KillAll()
	w.vmms.Told = (&told{}).hear
	mustBake(t, w)
	r, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, Hold: makeHold(t, "record")})
	if err != nil {
		t.Fatal(err)
	}
	w.branch(t, r.Sandboxes[0].ID, "disk", vm.BranchDisk)
	open := netclient.Default()
	if _, err := w.Bake(t.Context(), bake.Request{Tag: "baked", From: "disk", Network: &open}); err != nil {
		t.Fatal(err)
	}
	if r, err = w.Fork(t.Context(), ForkRequest{Tag: "baked", N: 1}); err != nil {
		t.Fatal(err)
	}
	if hold := r.Sandboxes[0].Network.Hold; len(hold.Hosts) != 1 || hold.Answer != netproto.AnswerRecord {
		t.Errorf("%+v", hold)
	}
	if open.Hold.On() {
		t.Error("the caller's setting was changed")
	}
}
