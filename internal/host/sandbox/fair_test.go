package sandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// A branch that waits for another branch of the same sandbox holds none of the host's places. The
// branches of one client always leave a place for another client.
func TestOneClientDoesNotHoldAllBranches(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	a, b := as(t, "token:a"), as(t, "token:b")
	ids := []string{w.source(t)}
	for range 4 {
		ids = append(ids, w.fork(t, "p"))
	}
	w.vmms.Copying = make(chan struct{})
	begin := func(ctx context.Context, id, tag string) error {
		_, err := w.Branch(ctx, id, BranchRequest{Tag: tag, Mode: vm.BranchLive, NoWait: true})
		return err
	}
	if err := begin(a, ids[0], "a0"); err != nil {
		t.Fatal(err)
	}
	waiting, leave := context.WithCancel(a)
	ended := make(chan error)
	for range 4 { // start as many branches as there are places; all wait for a sandbox that is being branched
		go func() { ended <- begin(waiting, ids[0], "") }()
	}
	if err := begin(a, ids[1], "a1"); err != nil {
		t.Errorf("a second branch of the client: %v", err)
	}
	if err := begin(a, ids[2], "a2"); err != nil {
		t.Errorf("a third branch of the client: %v", err)
	}
	var busy *admit.BusyError
	if err := begin(a, ids[3], "a3"); !errors.As(err, &busy) || busy.Owner != "token:a" || busy.Limit != 3 {
		t.Errorf("a fourth branch of the client: %v", err)
	}
	if err := begin(b, ids[4], "b"); err != nil {
		t.Errorf("a branch of another client: %v", err)
	}
	if err := begin(b, ids[3], "b3"); !errors.As(err, &busy) || busy.Owner != "" {
		t.Errorf("one more than the host makes: %v", err)
	}
	leave()
	for range 4 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("one that waited for its sandbox: %v", err)
		}
	}
	close(w.vmms.Copying)
	w.background.Wait()
	w.KillAll()
	w.checkClean(t)
}

// A promotion whose request sets the field Queue waits until one of the host's places for branches
// is free.
func TestAPromotionWaitsForItsTurn(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	ids := []string{w.source(t)}
	for range 5 {
		ids = append(ids, w.fork(t, "p"))
	}
	w.vmms.Copying = make(chan struct{})
	for i, owner := range []string{"token:a", "token:a", "token:a", "token:b"} {
		req := BranchRequest{Tag: fmt.Sprint("b", i), Mode: vm.BranchLive, NoWait: true}
		if _, err := w.Branch(as(t, owner), ids[i], req); err != nil {
			t.Fatal(err)
		}
	}
	promote := func(ctx context.Context, queue bool) error {
		_, err := w.Promote(ctx, ids[5], ids[4], BranchRequest{Mode: vm.BranchDiff, Queue: queue}, unique.AsBefore)
		return err
	}
	var busy *admit.BusyError
	if err := promote(as(t, "token:c"), false); !errors.As(err, &busy) {
		t.Errorf("without Queue: %v", err)
	}
	ctx, leave := context.WithCancel(as(t, "token:c"))
	ended := make(chan error)
	go func() { ended <- promote(ctx, true) }()
	for w.branches.Waiting() == 0 {
		time.Sleep(time.Millisecond)
	}
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("a client that leaves: %v", err)
	}
	go func() { ended <- promote(as(t, "token:c"), true) }()
	for w.branches.Waiting() == 0 {
		time.Sleep(time.Millisecond)
	}
	close(w.vmms.Copying)
	if err := <-ended; err != nil {
		t.Errorf("with Queue: %v", err)
	}
	w.background.Wait()
	w.KillAll()
	w.checkClean(t)
}

// A client whose VMs do not answer cannot hold the last place for restores.
func TestOneClientDoesNotHoldAllRestores(t *testing.T) {
	g := gate.New(3)
	a, b := as(t, "token:a"), as(t, "token:b")
	for range 2 {
		if _, err := owner.TakePlace(a, g, ""); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range []struct {
		ctx   context.Context
		owner string
		ok    bool
	}{
		{a, "", false},
		{a, "token:b", false}, // the place counts for the client, and not for the owner of the sandbox
		{t.Context(), "token:a", false},
		{b, "token:a", true},
		{t.Context(), "token:b", true}, // a request without a token; the place counts for the sandbox's owner
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			ctx, cancel := context.WithCancel(c.ctx)
			place := make(chan func(), 1)
			go func() {
				release, err := owner.TakePlace(ctx, g, c.owner)
				if err != nil {
					release = nil
				}
				place <- release
			}()
			if !c.ok {
				time.AfterFunc(20*time.Millisecond, cancel) // a call that finds a free place would have returned by now
			}
			release := <-place
			if (release != nil) != c.ok {
				t.Errorf("got a place: %v", release != nil)
			}
			if release != nil {
				release()
			}
			cancel()
		})
	}
}

// slowVMM is a VM whose branches end only when a channel is closed.
type slowVMM struct {
	*vmfake.VMM
	begun func()
	end   chan struct{}
}

func (v *slowVMM) Branch(ctx context.Context, req vmmproto.Branch, f vmmclient.BranchFiles) (vmmproto.BranchResult,
	error) {
	v.begun()
	<-v.end
	return v.VMM.Branch(ctx, req, f)
}

// If many sandboxes expire at the same moment, only a few are suspended at a time. Clients take
// turns: the sandboxes of one client are not all suspended before those of the next client.
func TestSuspensionsAreFew(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	var mu sync.Mutex
	under := 0
	entered, end := make(chan bool, 100), make(chan struct{})
	w.vmms.Wrap = func(v *vmfake.VMM) vmpool.VMM {
		return &slowVMM{v, func() { mu.Lock(); under++; mu.Unlock(); entered <- true }, end}
	}
	ended := make(chan error)
	begin := func(who string, n int) {
		r, err := w.Fork(as(t, who), ForkRequest{Tag: "p", N: n})
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range r.Sandboxes { // as on expiry, without a client's request
			go func() { _, err := w.Suspend(context.Background(), i.ID); ended <- err }()
		}
	}
	begin("token:a", 3*maxSuspends)
	for range maxSuspends - 1 {
		<-entered
	}
	begin("token:b", 1)
	<-entered
	mu.Lock()
	if under != maxSuspends {
		t.Errorf("%d suspensions are under way, want %d", under, maxSuspends)
	}
	mu.Unlock()
	close(end)
	for range 3*maxSuspends + 1 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	w.KillAll()
	w.checkClean(t)
}

// If a sandbox is to be suspended without a client's request, it can be used until there is a place
// for its suspension. If another operation holds the sandbox's lock, the suspension waits without a
// place.
func TestSuspensionsWithoutARequestWaitUnlocked(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	var leave []func()
	for i := range maxSuspends {
		done, err := owner.TakePlace(as(t, fmt.Sprint("token:", i)), w.suspends, "")
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, done)
	}
	soon := Expiry{At: time.Now().Add(time.Millisecond), Suspends: true}
	if _, err := w.setExpiry(t, id, soon); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond) // by now the expiry would have locked the sandbox
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := w.Pause(ctx, id); err != nil {
		t.Errorf("a request meanwhile: %v", err)
	}
	unlock, err := s.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, done := range leave {
		done()
	}
	time.Sleep(20 * time.Millisecond) // by now the suspension would have taken its place
	if n, _ := w.suspends.Count(); n != 0 {
		t.Errorf("%d places are taken by a sandbox that something else is done with", n)
	}
	unlock()
	waitState(t, w, id, Suspended)
	w.KillAll()
	w.checkClean(t)
}
