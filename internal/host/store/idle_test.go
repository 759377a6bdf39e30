package store

import (
	"fmt"
	"os"
	"testing"
)

func openFiles(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// A store limits how many snapshots without a lease keep their files open.
func TestIdleSnapshotsAreClosed(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "first", "")
	lease, err := s.Acquire("first")
	if err != nil {
		t.Fatal(err)
	}
	one := len(lease.Disk()) + len(lease.Layers()) + 1
	held := openFiles(t)
	for i := range 3 * maxIdle {
		tag := fmt.Sprintf("s%d", i)
		publish(t, s, d, tag, "")
		l, err := s.Acquire(tag)
		if err != nil {
			t.Fatal(err)
		}
		l.Release()
		again, err := s.Acquire(fmt.Sprintf("s%d", i/2)) // some snapshots have their files open, and some do not
		if err != nil {
			t.Fatal(err)
		}
		if _, err := again.State().ReadAt(make([]byte, 5), 0); err != nil {
			t.Errorf("state of s%d: %v", i/2, err)
		}
		again.Release()
	}
	s.Quiesce()
	if n := openFiles(t) - held; n > (maxIdle+1)*one { // plus one, because the sealer may have files open
		t.Errorf("%d snapshots that nobody uses keep %d files open, want at most %d", 3*maxIdle, n, maxIdle*one)
	}
	if _, err := lease.State().ReadAt(make([]byte, 5), 0); err != nil {
		t.Errorf("a leased snapshot was closed: %v", err)
	}
	lease.Release()
}
