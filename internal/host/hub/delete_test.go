package hub

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/store"
)

// gone waits until no process serves files, and checks that nothing of a deleted snapshot is left.
func (h *host) gone(t *testing.T, tag string) {
	t.Helper()
	if _, err := h.store.Info(tag); !errors.As(err, new(*store.NotFoundError)) {
		t.Errorf("the deleted snapshot: %v", err)
	}
	h.leavesNothing(t, "a deletion", 0)
	blobs, err := os.ReadDir(filepath.Join(h.root, "hub", "blobs"))
	if err != nil || len(blobs) > 0 {
		t.Errorf("the cache has %d blobs: %v", len(blobs), err)
	}
	for range 400 {
		if feeders(t) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Error("a process still serves files that nothing uses")
}

// If a snapshot is deleted while it is arriving, the arrival ends, and everything that has arrived
// is removed. While a sandbox uses the snapshot, the deletion is refused, and the snapshot goes on
// arriving.
func TestDeleteArriving(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).lazily(t)
	a.makeLarge(t, "py")
	a.push(t, "py", s.host+"/team/py:1")
	b.quiet = time.Hour
	counts := &tallied{ends: make(map[string]int)}
	b.cfg.Counts = counts
	for _, mode := range []store.DeleteMode{store.DeleteSingle, store.DeleteCascade, store.DeleteForce} {
		b.pullLazily(t, s.host+"/team/py:1")
		lease, err := b.store.AcquireFork("py")
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.store.Delete("py", mode)
		if used := (*store.InUseError)(nil); !errors.As(err, &used) || used.Leases != 1 {
			t.Errorf("mode %d, with a sandbox: %v", mode, err)
		}
		readAt(t, lease.Disk()[0], 100, 5<<20) // it goes on arriving
		lease.Release()
		if gone, err := b.store.Delete("py", mode); err != nil || len(gone) != 1 || gone[0].Tag != "py" {
			t.Fatalf("mode %d: %v, %v", mode, gone, err)
		}
		b.gone(t, "py")
	}
	if counts.faults.Load() == 0 || counts.background.Load() != 0 {
		t.Errorf("%d frames by faults, %d in the background", counts.faults.Load(), counts.background.Load())
	}
	b.quiet = 0
	b.pullLazily(t, s.host+"/team/py:1")
	if i := b.whole(t, "py"); i.Damage != "" {
		t.Error(i.Damage)
	}
	b.check(t, "py", map[int64]byte{2: 'p'})
	for range 100 {
		if counts.open.Load() > 0 {
			time.Sleep(50 * time.Millisecond)
		}
	}
	counts.mu.Lock()
	defer counts.mu.Unlock()
	if counts.background.Load() < 8<<20/(256<<10) || counts.ends["deleted"] != 3 || counts.ends["arrived"] != 1 ||
		counts.open.Load() != 0 {
		t.Errorf("%d frames in the background, ends: %v, %d open", counts.background.Load(), counts.ends, counts.open.Load())
	}
}

// tallied is a Counts for tests.
type tallied struct {
	faults, background, open atomic.Int64

	mu   sync.Mutex // guards ends
	ends map[string]int
}

func (c *tallied) ArrivalBegun() { c.open.Add(1) }

func (c *tallied) ArrivalEnded(result string) {
	c.mu.Lock()
	c.ends[result]++
	c.mu.Unlock()
	c.open.Add(-1)
}

func (c *tallied) FrameArrived(awaited bool, _ int64) {
	if awaited {
		c.faults.Add(1)
	} else {
		c.background.Add(1)
	}
}

// A deletion at any time during an arrival leaves nothing.
func TestDeleteAtAnyTime(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).lazily(t)
	a.makeLarge(t, "py")
	a.push(t, "py", s.host+"/team/py:1")
	b.quiet = 0
	for n := range 6 {
		b.pullLazily(t, s.host+"/team/py:1")
		time.Sleep(time.Duration(n) * 20 * time.Millisecond)
		i, err := b.store.Info("py")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.store.Delete("py", store.DeleteSingle); err != nil {
			t.Fatalf("round %d: %v", n, err)
		}
		t.Logf("round %d: arriving: %v", n, i.Arriving)
		for range 100 { // the blobs are removed a moment after the arrival
			if left, _ := os.ReadDir(filepath.Join(b.root, "hub", "blobs")); len(left) == 0 {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		b.gone(t, "py")
	}
}

// While the daemon stops, an arriving snapshot cannot be deleted, because nothing is being fetched
// any more. The next daemon removes the snapshot.
func TestDeleteArrivingWhileStopping(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).lazily(t)
	a.makeLarge(t, "py")
	a.push(t, "py", s.host+"/team/py:1")
	var stop context.CancelFunc
	b.cfg.Stopping, stop = context.WithCancel(t.Context())
	b.quiet = time.Hour
	b.pullLazily(t, s.host+"/team/py:1")
	stop()
	if _, err := b.store.Delete("py", store.DeleteSingle); err == nil || !strings.Contains(err.Error(), "stopping") {
		t.Errorf("a deletion while the daemon stops: %v", err)
	}
	if i, err := b.store.Info("py"); err != nil || !i.Arriving {
		t.Errorf("after that: %+v, %v", i, err)
	}
}

// Environment variables of a process that kills itself while it deletes a snapshot that is arriving.
const (
	deletingRootEnv = "FORKD_TEST_DELETING_ROOT" // directory of the host
	deletingFromEnv = "FORKD_TEST_DELETING_FROM" // reference of the snapshot
	deletingLateEnv = "FORKD_TEST_DELETING_LATE" // not empty: delay the deletion until everything has arrived
	deletingAtEnv   = "FORKD_TEST_DELETING_AT"   // microseconds between the deletion and the kill
)

// TestMortalDelete is the main function of a process that kills itself during a deletion. It is not
// a test by itself.
func TestMortalDelete(t *testing.T) {
	root := os.Getenv(deletingRootEnv)
	if root == "" {
		return
	}
	at, err := strconv.Atoi(os.Getenv(deletingAtEnv))
	if err != nil {
		t.Fatal(err)
	}
	h := &host{root: filepath.Join(root, "state"), ram: filepath.Join(root, "ram")}
	h.open(t)
	h.lazily(t)
	late := os.Getenv(deletingLateEnv) != ""
	h.quiet = time.Hour
	if late {
		h.quiet = 0
	}
	h.pullLazily(t, os.Getenv(deletingFromEnv))
	for late {
		manifests, err := filepath.Glob(filepath.Join(h.root, "s*", "*", snapshot.ManifestFile))
		if err != nil {
			t.Fatal(err)
		}
		late = len(manifests) == 0
	}
	go h.store.Delete("py", store.DeleteSingle)
	time.Sleep(time.Duration(at) * time.Microsecond)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // wait for the signal
}

// If a daemon is killed while it deletes a snapshot that is arriving, the next daemon has nothing
// of the snapshot, or the whole snapshot if it had just arrived.
func TestKilledAmidDeleteOfAnArrival(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a := serve(t), newHost(t).hasty().lazily(t) // lazily skips the test without FUSE
	a.makeLarge(t, "py")
	a.push(t, "py", s.host+"/team/py:1")
	for n := range 6 {
		late, at := "", n*150
		if n%2 == 1 {
			late = "yes"
		}
		root := t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run=^TestMortalDelete$")
		cmd.Env = append(os.Environ(), deletingRootEnv+"="+root, deletingFromEnv+"="+s.host+"/team/py:1",
			deletingLateEnv+"="+late, deletingAtEnv+"="+strconv.Itoa(at), "TMPDIR="+root) // its files stay there
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("after %d µs: %v\n%s", at, err, out)
		}
		h := &host{root: filepath.Join(root, "state"), ram: filepath.Join(root, "ram")}
		h.open(t)
		h.hasty()
		i, err := h.store.Info("py")
		switch {
		case errors.As(err, new(*store.NotFoundError)):
			h.leavesNothing(t, "a killed daemon", 0)
			h.pull(t, "", s.host+"/team/py:1")
		case err != nil || late == "" || i.Damage != "":
			t.Errorf("after %d µs: %+v, %v", at, i, err)
		}
		h.check(t, "py", map[int64]byte{2: 'p'})
	}
}
