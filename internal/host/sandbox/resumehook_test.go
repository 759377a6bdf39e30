package sandbox

import (
	"context"
	"net"
	"testing"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// sleeper is a guest whose commands never end.
type sleeper struct {
	vmfake.Guest
	runs chan struct{} // receives a value when a command begins
}

func (g sleeper) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	if port == agentproto.ControlPort {
		return g.Guest.Dial(ctx, port)
	}
	g.runs <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

// A sandbox is deleted while its hook runs in a VM that is being resumed. The deletion ends the VM.
func TestDeletedDuringAfterResume(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	guest := sleeper{vmfake.Guest{All: w.vmms}, make(chan struct{}, 10)}
	w.Manager.cfg.Guest = func(string, string) Guest { return guest }
	endless := &snapshot.Hook{Args: []string{"sleep", "300"}, TimeoutSecs: 300, OnFailure: snapshot.HookContinues}
	id := forkOne(t, w, ForkRequest{Hooks: &snapshot.Hooks{AfterResume: endless}})
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := w.Resume(t.Context(), id)
		done <- err
	}()
	<-guest.runs
	if err := w.Kill(id); err != nil {
		t.Fatal(err)
	}
	if n := w.vmms.Count(); n != 0 {
		t.Errorf("after the deletion there are %d VMs", n)
	}
	if err := <-done; err == nil {
		t.Error("the resumption of a deleted sandbox has no error")
	}
	w.checkClean(t)
}
