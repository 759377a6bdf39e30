package sandbox

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
)

// mutes provides VMMs that do not answer after another daemon has taken them over.
type mutes struct{ *vmfake.VMMs }

func (m mutes) Attach(id, dir string) (vmpool.VMM, error) {
	v, err := m.VMMs.Attach(id, dir)
	if err != nil {
		return nil, err
	}
	return mute{v}, nil
}

// mute is a VMM that does not answer any request for at least a minute.
type mute struct{ vmpool.VMM }

func (mute) Stats(ctx context.Context) (vm.Stats, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	<-ctx.Done()
	return vm.Stats{}, fmt.Errorf("forkd-vmm: %w: %w", vmmclient.ErrNoAnswer, ctx.Err())
}

// A daemon that starts waits for all silent VMMs at the same time, so the wait does not depend on
// their number.
func TestStartWaitsOnceForSilentVMMs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 3 * vmpool.AtOnce
		w := newWorld(t, 0)
		mustBake(t, w)
		if _, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: many}); err != nil {
			t.Fatal(err)
		}
		w.stop()
		w.hosts = mutes{w.vmms}
		w.start(t, 0)
		defer w.stop()
		start := time.Now()
		n, err := w.Recover()
		if took := time.Since(start); n != many || err != nil || took > answersAtStart {
			t.Errorf("took over %d, %v, in %v; want %d in %v at most", n, err, took, many, answersAtStart)
		}
		for _, i := range w.List() {
			if i.State != Running || !i.Silent {
				t.Errorf("sandbox %s is %v, silent: %v", i.ID, i.State, i.Silent)
			}
		}
		w.KillAll()
		w.checkClean(t)
	})
}
