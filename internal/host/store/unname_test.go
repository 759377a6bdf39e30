package store

import (
	"errors"
	"os"
	"testing"
)

// If sandboxes only follow a snapshot, clients can delete the snapshot, and its tag is free
// immediately. Its files stay until no sandbox follows it any more. This is also true after a
// restart, and whether the files were flushed or not.
//
// +checklocksignore: it holds a lock in one of two cases
func TestFollowedSnapshotCanBeDeleted(t *testing.T) {
	for _, flushed := range []bool{true, false} {
		d := newDirs(t)
		s := d.open(t)
		publish(t, s, d, "base", "")
		publish(t, s, d, "other", "")
		other := s.byTag["other"] // keeps the flusher busy
		if !flushed {
			other.flushed = make(chan struct{})
			other.flushMu.Lock()
			s.flusher.Add(other)
		}
		publish(t, s, d, "b", "base")
		if flushed {
			if err := s.WaitFlushed(t.Context(), "b"); err != nil {
				t.Fatal(err)
			}
		}
		info, err := s.Detail("b")
		if err != nil {
			t.Fatal(err)
		}
		followed, err := s.Follow(info.ID, "")
		if err != nil {
			t.Fatal(err)
		}
		held, err := s.Acquire("b")
		if err != nil {
			t.Fatal(err)
		}
		var inUse *InUseError
		if _, err := s.Delete("b", DeleteForce); !errors.As(err, &inUse) {
			t.Errorf("a leased snapshot: %v", err)
		}
		held.Release()
		if gone, err := s.Delete("b", DeleteSingle); err != nil || len(gone) != 1 || gone[0] != (Deleted{"b", info.ID}) {
			t.Fatalf("%v, %v", gone, err)
		}
		if _, err := s.Acquire("b"); err == nil {
			t.Error("its name is still there")
		}
		if n := s.UnnamedBytes(info.ID); n == 0 || n != info.MemoryPhysical+info.DiskPhysical+info.StateBytes {
			t.Errorf("flushed %v: it takes %d bytes: %+v", flushed, n, info)
		}
		if list := s.List(); len(list) != 2 {
			t.Errorf("listed: %+v", list)
		}
		if _, err := s.Delete("base", DeleteSingle); err != nil {
			t.Errorf("its parent: %v", err)
		}
		again, err := s.AcquireFollowed(info.ID)
		if err != nil {
			t.Fatal(err)
		}
		followed()
		if !flushed {
			other.flushMu.Unlock()
		}
		publish(t, s, d, "b", "other") // another snapshot with the same tag
		s.Quiesce()
		if st, err := again.Layers()[1].Stat(); err != nil || st.Size() == 0 {
			t.Errorf("its layer: %v", err)
		}
		s.Close()

		s = d.open(t)
		after, err := s.Follow(info.ID, "")
		if err != nil {
			t.Fatalf("flushed %v: after a restart: %v", flushed, err)
		}
		s.DropUnused()
		s.drops.Wait()
		if _, err := os.Stat(s.dir(unnamedPrefix + info.ID)); err != nil {
			t.Errorf("flushed %v: while it is followed: %v", flushed, err)
		}
		after()
		s.drops.Wait()
		if _, err := os.Stat(s.dir(unnamedPrefix + info.ID)); !os.IsNotExist(err) {
			t.Errorf("flushed %v: nobody follows it: %v", flushed, err)
		}
		if _, err := os.Stat(s.layerDir(info.ID)); !os.IsNotExist(err) {
			t.Errorf("flushed %v: its layer in RAM: %v", flushed, err)
		}
		if err := s.Verify(t.Context(), "b"); err != nil {
			t.Error(err)
		}
	}
}

// Unnamed snapshots that no sandbox follows are deleted as soon as all sandboxes are known.
func TestUnnamedSnapshotsOfALostDaemon(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "base", "")
	publish(t, s, d, "b", "base")
	info, err := s.Detail("b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Follow(info.ID, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Delete("b", DeleteSingle); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = d.open(t)
	s.DropUnused()
	s.drops.Wait()
	if _, err := s.Follow(info.ID, ""); err == nil {
		t.Error("it is still there")
	}
	if _, err := os.Stat(s.dir(unnamedPrefix + info.ID)); !os.IsNotExist(err) {
		t.Error(err)
	}
}

// A snapshot may lose its name before it is flushed. Its layers are then still found in RAM.
func TestFollowedSnapshotIsFoundInRAM(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "base", "")
	publish(t, s, d, "other", "")
	other := s.byTag["other"] // keeps the flusher busy
	other.flushed = make(chan struct{})
	other.flushMu.Lock()
	s.flusher.Add(other)
	publish(t, s, d, "b", "base")
	info, err := s.Detail("b")
	if err != nil {
		t.Fatal(err)
	}
	unfollow, err := s.Follow(info.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	victims, err := s.condemn("b", DeleteSingle)
	if err != nil {
		t.Fatal(err)
	}
	s.flushNow(victims[0])
	if err := s.removeOrUnname(victims[0]); err != nil {
		t.Fatal(err)
	}
	lease, err := s.AcquireFollowed(info.ID)
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	unfollow()
	other.flushMu.Unlock()
}
