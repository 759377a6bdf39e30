package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkd/forkd/internal/format/crypt"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/store"
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

// A sandbox whose snapshot is encrypted keeps the snapshot, even if the daemon that takes over the
// sandbox cannot decrypt the snapshot.
func TestTakeOverOfAnEncryptedSnapshot(t *testing.T) {
	w := newWorld(t, 0)
	mustBake(t, w)
	f, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.Snapshots().Quiesce()
	d, err := w.Snapshots().Detail("p")
	if err != nil {
		t.Fatal(err)
	}
	w.stop()
	rec, err := record.EncodeEncryption(&record.Encryption{SnapshotID: d.ID, Keys: []string{crypt.NewID()}})
	if err == nil {
		err = os.WriteFile(filepath.Join(d.Dir, store.EncryptionFile), rec, 0o600)
	}
	state := filepath.Join(d.Dir, snapshot.StateFile)
	if err == nil {
		err = os.Rename(state, state+crypt.Suffix)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.start(t, 0)
	defer w.stop()
	if n, err := w.Recover(); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1}); err == nil {
		t.Error("forked a snapshot that cannot be decrypted")
	}
	var used *store.InUseError
	if err := w.DeleteSnapshot("p", store.DeleteForce); !errors.As(err, &used) {
		t.Errorf("the snapshot of a running sandbox was deleted: %v", err)
	}
	if err := w.Kill(f.Sandboxes[0].ID); err != nil {
		t.Fatal(err)
	}
	w.checkClean(t)
	if err := w.DeleteSnapshot("p", store.DeleteForce); err != nil {
		t.Error(err)
	}
}
