package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/host/backlog"
	"github.com/forkd/forkd/internal/host/reserve"
)

// slowDisk opens a store whose RAM has room for the given number of layers, each as large as a
// layer that publish makes. Nothing is written to its disk until catchUp is called.
//
// +checklocksignore: it returns with the flusher's lock held
func slowDisk(t *testing.T, layers int) (s *Store, d dirs, catchUp func()) {
	t.Helper()
	d = newDirs(t)
	s = d.open(t)
	publish(t, s, d, "parent", "")
	s.Quiesce()
	at := s.byTag["parent"] // keeps the flusher busy
	at.flushed = make(chan struct{})
	at.flushMu.Lock()
	s.flusher.Add(at)
	released := false
	catchUp = func() {
		if !released {
			released = true
			at.flushMu.Unlock()
		}
	}
	t.Cleanup(catchUp) // runs before the store is closed
	s.ramRoom = func() (free, all uint64, err error) {
		entries, err := os.ReadDir(s.ram)
		return uint64(max(0, layers-len(entries))) * layerBytes, uint64(layers) * layerBytes, err
	}
	s.backlog.Wait, s.backlog.Age = time.Millisecond, 0
	return s, d, catchUp
}

// reserveRAM reserves room for n layers of an owner. If ReserveRAM refuses, reserveRAM
// returns the error.
func reserveRAM(t *testing.T, s *Store, owner string, n uint64) (release func(), refused *backlog.Error) {
	t.Helper()
	release, err := s.ReserveRAM(t.Context(), owner, n*layerBytes, nil)
	if err != nil && !errors.As(err, &refused) {
		t.Fatal(err)
	}
	return release, refused
}

// fillRAM publishes branches of an owner until a branch is refused. It returns the number of
// published branches.
func fillRAM(t *testing.T, s *Store, d dirs, owner string) int {
	t.Helper()
	for n := range 100 {
		release, refused := reserveRAM(t, s, owner, 1)
		if refused != nil {
			return n
		}
		g, err := s.Stage(fmt.Sprintf("%s%d", owner, n))
		if err != nil {
			t.Fatal(err)
		}
		g.For(owner, nil)
		if err := complete(t, s, d, g, "parent"); err != nil {
			t.Fatal(err)
		}
		release()
	}
	t.Fatalf("%s is never refused", owner)
	return 0
}

// Branches of one owner that are not on disk yet leave room in RAM for other owners. If there is
// only one owner, its branches can take most of the RAM.
func TestUnflushedBranchesLeaveRoom(t *testing.T) {
	s, d, catchUp := slowDisk(t, 17) // one of the layers belongs to the parent
	if n := fillRAM(t, s, d, "a"); n != 12 {
		t.Errorf("a has %d of 16 places, want three quarters", n)
	}
	if n := fillRAM(t, s, d, "b"); n != 3 {
		t.Errorf("b has %d of the 4 places that are left, want three quarters", n)
	}
	_, refused := reserveRAM(t, s, "a", 1)
	if refused == nil || refused.Own != 12*layerBytes || refused.All != 15*layerBytes || refused.Flush != nil {
		t.Errorf("one more of a: %+v", refused)
	}
	s.backlog.Wait = time.Hour
	got := make(chan error, 1)
	go func() {
		release, err := s.ReserveRAM(t.Context(), "a", 4*layerBytes, nil)
		if err == nil {
			release()
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Errorf("a does not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	catchUp()
	if err := <-got; err != nil {
		t.Errorf("when the disk has caught up: %v", err)
	}
}

// A branch that is larger than its owner's share waits until no other layer is only in RAM. Smaller
// branches of the same owner wait behind it.
func TestLargeBranchIsPossible(t *testing.T) {
	s, d, catchUp := slowDisk(t, 17)
	release, refused := reserveRAM(t, s, "a", 100)
	if refused != nil {
		t.Fatalf("alone: %v", refused)
	}
	if _, refused := reserveRAM(t, s, "b", 1); refused == nil {
		t.Error("another one beside it")
	}
	release()
	fillRAM(t, s, d, "a")
	s.backlog.Wait = time.Hour
	large := make(chan func(), 1)
	go func() {
		release, err := s.ReserveRAM(t.Context(), "b", 10*layerBytes, nil)
		if err != nil {
			t.Error(err)
		}
		large <- release
	}()
	for queued := 0; queued == 0; time.Sleep(time.Millisecond) {
		queued, _ = s.backlog.Len()
	}
	if release, err := s.ReserveRAM(t.Context(), "c", 1, nil); err != nil {
		t.Errorf("a small branch waits for a large one: %v", err)
	} else {
		release()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.ReserveRAM(ctx, "a", 1, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a, which has three quarters, passes b: %v", err)
	}
	catchUp()
	if release := <-large; release != nil {
		release()
	}
	if waiting, taken := s.backlog.Len(); waiting != 0 || taken != 0 {
		t.Errorf("%d wait, %d have room", waiting, taken)
	}
}

// If the disk is full, a branch is refused immediately and does not wait. If a flush fails because
// a layer is larger than the free space, branches of other owners are refused only if they do not
// fit either. If a flush fails for another reason, only branches of the same owner are refused.
func TestBacklogOfAFullDisk(t *testing.T) {
	s, d, _ := slowDisk(t, 17)
	n := fillRAM(t, s, d, "a")
	s.backlog.Wait = time.Hour
	fail := func(err error) {
		s.mu.Lock()
		s.byTag[fmt.Sprintf("a%d", n-1)].flushErr = err
		s.mu.Unlock()
	}
	fail(fmt.Errorf("flush: %w", unix.EIO))
	if _, refused := reserveRAM(t, s, "a", 1); !errors.Is(refused, unix.EIO) {
		t.Errorf("of the owner: %v", refused)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.ReserveRAM(ctx, "b", 4*layerBytes, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("of another owner: %v", err)
	}
	fail(fmt.Errorf("flush: %w", unix.ENOSPC))
	s.backlog.FreeDisk = func() (uint64, error) { return 4*layerBytes + reserve.Bytes, nil }
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.ReserveRAM(ctx, "b", 4*layerBytes, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("of another owner, whose branch fits on the disk: %v", err)
	}
	if _, refused := reserveRAM(t, s, "a", 4); !errors.Is(refused, unix.ENOSPC) {
		t.Errorf("of the owner whose layer does not fit: %v", refused)
	}
	if _, refused := reserveRAM(t, s, "b", 5); !errors.Is(refused, unix.ENOSPC) {
		t.Errorf("a branch that does not fit: %v", refused)
	}
	s.backlog.FreeDisk = func() (uint64, error) { return 0, errors.New("unknown") }
	if _, refused := reserveRAM(t, s, "b", 4); !errors.Is(refused, unix.ENOSPC) {
		t.Errorf("on a disk whose room is unknown: %v", refused)
	}
}

// For a large branch, the store drops more unused layers than usual. The branch gets the freed room
// immediately.
func TestUnusedLayersMakeRoomForALargeBranch(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	layers := func() int { entries, _ := os.ReadDir(s.ram); return len(entries) }
	s.ramRoom = func() (free, all uint64, err error) {
		return uint64(16-layers()) * layerBytes, 16 * layerBytes, nil
	}
	for i := range 12 {
		publish(t, s, d, fmt.Sprintf("s%d", i), "")
	}
	s.Quiesce()
	s.backlog.Wait, s.backlog.Age = time.Millisecond, time.Hour
	small, refused := reserveRAM(t, s, "b", 1)
	if refused != nil {
		t.Fatal(refused)
	}
	defer small()
	release, refused := reserveRAM(t, s, "a", 9)
	if refused != nil {
		t.Fatal(refused)
	}
	defer release()
	if n := layers(); n > 4 {
		t.Errorf("%d unused layers are left of 16 places, of which a branch is to take 9 and leave 3", n)
	}
}
