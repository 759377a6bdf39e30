package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/vmmclient"
)

// until polls a sandbox until ok(i) is true for the sandbox's Info i. If this never happens, the
// test times out.
func until(t *testing.T, w *world, id string, ok func(Info) bool) {
	t.Helper()
	for {
		s, err := w.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		if ok(s.Info()) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// If the VM of a sandbox finds the disk full, the sandbox is shown as paused for that reason. It
// continues when there is room, or when a client resumes it.
func TestFullDiskPausesASandbox(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	var room atomic.Uint64
	w.Manager.room = func(string) (uint64, error) { return room.Load(), nil }
	id := w.source(t)
	full := func(i Info) bool { return i.State == Paused && i.DiskFull }
	runs := func(i Info) bool { return i.State == Running && !i.DiskFull }
	stall := func() {
		w.vmms.All()[0].Stall()
		until(t, w, id, full)
	}
	stall()
	if info, err := w.Resume(context.Background(), id); err != nil || !runs(info) {
		t.Fatalf("resumed by hand: %+v, %v", info, err)
	}
	stall()
	room.Store(roomToResume)
	until(t, w, id, runs)
	if _, err := w.Pause(context.Background(), id); err != nil {
		t.Fatal(err)
	}
	w.vmms.All()[0].Stall() // simulates a write that was in progress when the client paused the sandbox
	until(t, w, id, func(i Info) bool { return i.State == Paused && !i.DiskFull })
}

// If a VM reports a full disk, and then does not answer when the daemon asks, the daemon asks
// again. If it did not ask again, the VM would stay paused for ever, and be shown as running.
func TestFullDiskAndNoAnswer(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	w.vmms.StatsErr = vmmclient.ErrNoAnswer
	w.vmms.All()[0].Stall()
	until(t, w, id, func(i Info) bool { return i.Silent })
}

// If a VMM keeps reporting a full disk although there is room, the daemon reads only one report per
// second. So it sends the VMM at most one request per second.
func TestFullDiskIsToldWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		defer w.stop()
		id := w.source(t)
		const seconds, most = 10, 1000
		told := w.vmms.All()[0].TellOfFullDisk(most)
		time.Sleep(seconds * time.Second)
		if n := told(); n < seconds || n > seconds+2 {
			t.Errorf("the daemon has taken %d messages in %d s", n, seconds)
		}
		if err := w.Kill(id); err != nil {
			t.Error(err)
		}
	})
}

// If a sandbox was suspended before the disk became full, its network policy can be changed while
// the disk is full.
func TestNetworkPolicyOnAFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64m,mode=700"); err != nil {
		t.Skipf("needs the right to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("TMPDIR", disk) // all files of the world are on the disk
	t.Run("world", func(t *testing.T) {
		w := newWorld(t, 0)
		defer w.stop()
		id := w.source(t)
		if _, err := w.Suspend(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Resume(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		w.Snapshots().Quiesce()
		f, err := os.Create(filepath.Join(disk, "file of a guest"))
		if err != nil {
			t.Fatal(err)
		}
		for page := make([]byte, 4096); err == nil; {
			_, err = f.Write(page)
		}
		if f.Close(); !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		if _, err := w.SetNetwork(t.Context(), id, netclient.Isolated()); err != nil {
			t.Error(err)
		}
		if err := os.Remove(f.Name()); err != nil {
			t.Error(err)
		}
	})
}
