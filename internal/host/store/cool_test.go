package store

import (
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// Layers that are not in use are dropped from RAM to make room, least recently used first. Their
// snapshots can still be used.
func TestUnusedLayersLeaveTheRAM(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	layers := func() int { entries, _ := os.ReadDir(s.ram); return len(entries) }
	var most atomic.Int64 // number of layers for which there is room
	most.Store(100)
	s.ramRoom = func() (free, all uint64, err error) {
		if layers() > int(most.Load()) {
			return 0, 4, nil
		}
		return 1, 4, nil
	}
	// cool drops layers until at most n are in RAM. The flusher may drop some of them.
	cool := func(n int) {
		for most.Store(int64(n)); layers() > n; time.Sleep(time.Millisecond) {
			s.coolUnused()
		}
		most.Store(100)
	}
	id := func(tag string) string {
		info, err := s.Detail(tag)
		if err != nil {
			t.Fatal(err)
		}
		return info.ID
	}
	hot := func(tag string) bool { _, err := os.Stat(s.ramLayer(id(tag))); return err == nil }
	for i := range 6 {
		publish(t, s, d, fmt.Sprintf("s%d", i), "")
	}
	publish(t, s, d, "child", "s0") // the child uses the layer of s0, too
	s.Quiesce()
	kept, err := s.Acquire("child")
	if err != nil {
		t.Fatal(err)
	}
	for i, at := range []int{4, 1, 2, 5, 3} { // the order in which the snapshots are used
		s.byTag[fmt.Sprintf("s%d", at)].used = time.Now().Add(time.Duration(i) * time.Second)
	}
	cool(4) // of the 7 snapshots, 4 stay in RAM
	var gone []string
	for _, tag := range []string{"s0", "s1", "s2", "s3", "s4", "s5", "child"} {
		if !hot(tag) {
			gone = append(gone, tag)
		}
	}
	if !slices.Equal(gone, []string{"s1", "s2", "s4"}) {
		t.Errorf("%v have left the RAM, want s1, s2, s4", gone)
	}
	cool(2)
	most.Store(0)
	s.coolUnused() // layers in use are not dropped, however little room there is
	most.Store(100)
	if !hot("s0") || !hot("child") || hot("s3") || hot("s5") {
		t.Errorf("of what is in use: %v %v; of the rest: %v %v", hot("s0"), hot("child"), hot("s3"), hot("s5"))
	}
	kept.Release()
	for _, tag := range []string{"s1", "s5", "child"} {
		l, err := s.Acquire(tag)
		if err != nil {
			t.Fatalf("%s, which has left the RAM: %v", tag, err)
		}
		l.Release()
		if err := s.Verify(t.Context(), tag); err != nil {
			t.Error(err)
		}
	}
	if entries, err := os.ReadDir(s.ram); err != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return s.byID[e.Name()] == nil
	}) {
		t.Errorf("left in RAM: %v, %v", entries, err)
	}
}

// A suspended state reaches the disk even while the layer of another client's branch is being
// written.
func TestAwaitedSnapshotsPassOthers(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "other", "")
	s.Quiesce()
	other := s.byTag["other"] // keeps the flusher busy
	other.flushed = make(chan struct{})
	other.flushMu.Lock()
	s.flusher.Add(other)
	g, err := s.Stage("asleep")
	if err != nil {
		t.Fatal(err)
	}
	g.For("b", nil)
	g.Awaited()
	if err := complete(t, s, d, g, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitFlushed(t.Context(), "asleep"); err != nil {
		t.Error(err)
	}
	other.flushMu.Unlock()
}
