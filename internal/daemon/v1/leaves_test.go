package v1_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// docs/api.md describes the effects of a request whose client disconnects.

// unconfirmed is a guest that never confirms its identity after a fork.
type unconfirmed struct{ asked chan struct{} }

func (g unconfirmed) Forked(ctx context.Context, _ agentproto.Forked) (*agentproto.Unique, error) {
	g.asked <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}
func (unconfirmed) Dial(context.Context, uint32) (net.Conn, error) {
	return nil, errors.New("it is deaf")
}

// leave runs f, which sends a request to the given route, in a goroutine. It calls begun(), and
// then cancels the request. When the client has disconnected, it closes the given channel (left).
// Then it waits for the request's audit line, which the daemon writes at the end of the request.
func leave(t *testing.T, r *apirig.Rig, route string, left chan struct{}, f func(context.Context) error, begun func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	end := make(chan error, 1)
	go func() { end <- f(ctx) }()
	begun()
	cancel()
	if err := <-end; !errors.Is(err, context.Canceled) {
		t.Errorf("the client that leaves: %v", err)
	}
	close(left)
	for {
		p, err := os.ReadFile(r.AuditLog)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(p), `"route":"`+route+`"`) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func TestForkWithoutItsClient(t *testing.T) {
	guest := unconfirmed{make(chan struct{})}
	r := start(t, apirig.Options{Guest: guest})
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	leave(t, r, "POST /v1/forks", make(chan struct{}), func(ctx context.Context) error {
		_, err := r.Fork(ctx, client.ForkRequest{SnapshotTag: "a.b", N: 3})
		return err
	}, func() {
		for range 3 {
			<-guest.asked
		}
	})
	if list, err := r.Sandboxes(t.Context()); err != nil || len(list) != 0 || r.VMs.Count() != 0 {
		t.Errorf("%d sandboxes and %d VMs are left, %v", len(list), r.VMs.Count(), err)
	}
	if err := r.DeleteSnapshot(t.Context(), "a.b", client.DeleteOptions{}); err != nil {
		t.Errorf("the snapshot is held: %v", err)
	}
}

func TestBakeWithoutItsClient(t *testing.T) {
	r := start(t, apirig.Options{})
	begun := make(chan struct{})
	r.VMs.Exec = func(ctx context.Context) agentclient.ExecResult {
		close(begun)
		<-ctx.Done()
		return agentclient.ExecResult{}
	}
	bake := r.Parent
	bake.Warmup.Commands = []string{"true"}
	leave(t, r, "POST /v1/snapshots", make(chan struct{}), func(ctx context.Context) error {
		_, err := r.Bake(ctx, bake)
		return err
	}, func() { <-begun })
	if _, err := r.Snapshot(t.Context(), bake.Tag); !client.IsNotFound(err) || r.VMs.Count() != 0 {
		t.Errorf("%d VMs are left, %v", r.VMs.Count(), err)
	}
	r.VMs.Exec = nil
	if _, err := r.Bake(t.Context(), bake); err != nil {
		t.Errorf("the tag is held: %v", err)
	}
}

// If a client disconnects after its branch has begun, the branch is still completed, because the
// sandbox has already continued.
func TestBranchWithoutItsClient(t *testing.T) {
	r := start(t, apirig.Options{})
	id := fork(t, r, 1)[0].ID
	r.VMs.Copying = make(chan struct{})
	source := r.VMs.All()[0]
	isCopied := func() bool {
		r.VMs.Mu.Lock()
		defer r.VMs.Mu.Unlock()
		return len(source.Asked) > 0
	}
	leave(t, r, "POST /v1/sandboxes/{id}/branch", r.VMs.Copying, func(ctx context.Context) error {
		_, err := r.Branch(ctx, id, client.BranchRequest{Tag: "b"})
		return err
	}, func() {
		for !isCopied() {
			time.Sleep(time.Millisecond)
		}
		if s, err := r.Snapshot(t.Context(), "b"); err != nil || s.Status != "writing" {
			t.Errorf("while it is made: %+v, %v", s, err)
		}
	})
	if s, err := r.Snapshot(t.Context(), "b"); err != nil || s.Status != "ready" {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := r.Branch(t.Context(), id, client.BranchRequest{Tag: "b2"}); err != nil {
		t.Errorf("the next one: %v", err)
	}
}

// If a client disconnects while its command cannot be killed, the command continues. It can be
// listed and killed later.
func TestCommandOfAPausedSandboxWithoutItsClient(t *testing.T) {
	var standsStill atomic.Bool
	r := start(t, apirig.Options{Dial: func(ctx context.Context) error {
		if standsStill.Load() { // like the agent of a paused guest
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}})
	id := fork(t, r, 1)[0].ID
	started := make(chan uint32, 1)
	leave(t, r, "GET /v1/sandboxes/{id}/exec", make(chan struct{}), func(ctx context.Context) error {
		p, err := r.StartExec(ctx, id, client.ExecRequest{Args: []string{"sleep", "1000"}})
		if err != nil {
			return err
		}
		started <- p.PID
		_, err = p.Wait(io.Discard, io.Discard)
		return err
	}, func() {
		started <- <-started
		if _, err := r.Pause(t.Context(), id); err != nil {
			t.Error(err)
		}
		standsStill.Store(true)
	})
	standsStill.Store(false)
	if _, err := r.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	pid := <-started
	list, err := r.Processes(t.Context(), id)
	if err != nil || len(list) != 1 || list[0].PID != pid {
		t.Fatalf("%+v, %v; want process %d", list, err, pid)
	}
	if err := r.SignalProcess(t.Context(), id, pid, "KILL"); err != nil {
		t.Error(err)
	}
}
