package store

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// throttle counts how many callers currently keep the limits of a VM's disk lifted, and how often
// the limits have been lifted.
type throttle struct{ lifted, lifts atomic.Int64 }

func (l *throttle) lift() (done func()) {
	l.lifted.Add(1)
	l.lifts.Add(1)
	return func() { l.lifted.Add(-1) }
}

func (l *throttle) now() int64   { return l.lifted.Load() }
func (l *throttle) total() int64 { return l.lifts.Load() }

// publishBy publishes a snapshot whose disk a throttled VM has written.
func publishBy(t *testing.T, s *Store, d dirs, l hurry, tag, parent string) {
	t.Helper()
	g, err := s.Stage(tag)
	if err != nil {
		t.Fatal(err)
	}
	g.Hurry(l)
	if err := complete(t, s, d, g, parent); err != nil {
		t.Fatal(err)
	}
}

// A snapshot's VM is not throttled from the publication of the snapshot until the end of its flush.
// The VM is also not throttled during later attempts, or while a snapshot that inherits the disk
// layer is flushed.
func TestFlushIsNotThrottled(t *testing.T) {
	s, d, catchUp := slowDisk(t, 100)
	var a, b throttle
	publishBy(t, s, d, a.lift, "a", "parent")
	if a.now() == 0 {
		t.Error("a is throttled while it waits for its flush")
	}
	publishBy(t, s, d, b.lift, "b", "a")
	if _, err := s.Delete("a", DeleteForce); err != nil {
		t.Fatal(err)
	}
	obstacle := filepath.Join(s.dir("b"), "x") // prevents the flush
	if err := os.MkdirAll(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	total := a.total()
	catchUp()
	if err := s.WaitFlushed(t.Context(), "b"); err == nil {
		t.Fatal("flushed over an obstacle")
	}
	if a.total() == total {
		t.Error("the VM that wrote an inherited layer is throttled during the flush")
	}
	if a.now() != 0 || b.now() != 0 {
		t.Errorf("limits are lifted %d and %d times after an attempt", a.now(), b.now())
	}
	if err := os.RemoveAll(filepath.Dir(obstacle)); err != nil {
		t.Fatal(err)
	}
	total = b.total()
	s.flusher.Close() // tries again
	if b.total() == total || a.now() != 0 || b.now() != 0 {
		t.Errorf("another attempt lifts the limits %d times, and leaves %d and %d", b.total()-total, a.now(), b.now())
	}
	if err := s.WaitFlushed(t.Context(), "b"); err != nil {
		t.Error(err)
	}
}

// If a snapshot replaces another snapshot, or is on disk when it becomes visible, its VM is not
// throttled while Publish writes the snapshot. If Publish fails, the VM is throttled again.
func TestPublishIsNotThrottled(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "parent", "")
	publish(t, s, d, "old", "parent")
	lease, err := s.Acquire("old")
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	for _, fails := range []bool{true, false} {
		g, err := s.StageOver("old")
		if err != nil {
			t.Fatal(err)
		}
		if fails {
			if lease, err = s.Acquire("old"); err != nil {
				t.Fatal(err)
			}
		}
		var l throttle
		g.Hurry(func() func() {
			if _, err := os.Stat(g.Path(snapshot.ManifestFile)); err == nil && l.total() == 0 {
				t.Error("written before the limits are lifted")
			}
			return l.lift()
		})
		if err := complete(t, s, d, g, "parent"); (err != nil) != fails {
			t.Fatalf("fails: %v, but %v", fails, err)
		}
		s.Quiesce()
		if l.total() == 0 || l.now() != 0 {
			t.Errorf("fails: %v: the limits were lifted %d times, and %d times at the end", fails, l.total(), l.now())
		}
		lease.Release()
	}
}

// When a daemon takes over a VM, it lifts the VM's limits while snapshots of an earlier daemon are
// flushed.
func TestFlushOfAnEarlierDaemonIsNotThrottled(t *testing.T) {
	s, d, catchUp := slowDisk(t, 100)
	publishBy(t, s, d, nil, "a", "parent")
	publishBy(t, s, d, nil, "b", "a")
	s.mu.Lock()
	s.byTag["a"].manifest.Branch = &snapshot.Branch{SandboxID: "sb-a"}
	s.mu.Unlock()
	var l, other throttle
	s.HurryTakenOver("sb-other", nil, other.lift)
	s.HurryTakenOver("sb-a", nil, l.lift)
	if l.now() == 0 || other.total() != 0 {
		t.Errorf("before the flush: lifted %d times, of another sandbox %d times", l.now(), other.total())
	}
	catchUp()
	s.Quiesce()
	if l.now() != 0 {
		t.Errorf("lifted %d times after the flush", l.now())
	}
	s.HurryTakenOver("sb-a", nil, l.lift)
	if l.now() != 0 {
		t.Errorf("lifted %d times although all is on disk", l.now())
	}
}

// The snapshot for which a disk layer was made may be deleted before a daemon takes over the VM
// that has written the layer. The VM's record still names the snapshot, so the daemon can find the
// layer and lift the VM's limits.
func TestFlushAfterDeletedAncestorsIsNotThrottled(t *testing.T) {
	s, d, catchUp := slowDisk(t, 100)
	publishBy(t, s, d, nil, "a", "parent")
	first := s.byTag["a"].manifest.ID
	publishBy(t, s, d, nil, "b", "a")
	if _, err := s.Delete("a", DeleteForce); err != nil {
		t.Fatal(err)
	}
	var l, other throttle
	s.HurryTakenOver("sb-other", []string{snapshot.NewID()}, other.lift)
	s.HurryTakenOver("sb-a", []string{snapshot.NewID(), first}, l.lift)
	if l.now() == 0 || other.total() != 0 {
		t.Errorf("before the flush: lifted %d times, of another sandbox %d times", l.now(), other.total())
	}
	catchUp()
	s.Quiesce()
	if l.now() != 0 {
		t.Errorf("lifted %d times after the flush", l.now())
	}
}

// If a followed snapshot is deleted before its flush, the VMs that have written its disk layers are
// not throttled while a later snapshot of the follower is flushed.
func TestFlushAfterADeletedSnapshotIsNotThrottled(t *testing.T) {
	s, d, catchUp := slowDisk(t, 100)
	var l throttle
	publishBy(t, s, d, l.lift, "a", "parent")
	id := s.byTag["a"].manifest.ID
	unfollow, err := s.Follow(id, "")
	if err != nil {
		t.Fatal(err)
	}
	defer unfollow()
	if _, err := s.Delete("a", DeleteForce); err != nil {
		t.Fatal(err)
	}
	catchUp()
	s.Quiesce()
	if l.now() != 0 {
		t.Errorf("lifted %d times although no flush is in progress", l.now())
	}
	s.mu.Lock()
	later := s.hurriesLocked(&snapshot.Manifest{Parent: &snapshot.Ref{ID: id}}, nil)
	s.mu.Unlock()
	if done := liftAll(later); l.now() != 1 {
		t.Errorf("for a later snapshot, the limits are lifted %d times, want 1", l.now())
	} else {
		done()
	}
}
