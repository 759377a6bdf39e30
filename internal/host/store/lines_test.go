package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/host/backlog"
)

// If sandboxes of one owner follow branches that are flushed or deleted, these branches leave room
// in RAM for other owners, even when the sandboxes branch one after another.
func TestLinesLeaveRoom(t *testing.T) {
	s, d, catchUp := slowDisk(t, 17) // room for 17 layers, including the parent's layer
	catchUp()
	s.Quiesce()
	var unfollow func()
	var refused *backlog.Error
	made := 0
	for ; made < 17; made++ {
		var release func()
		if release, refused = reserveRAM(t, s, "a", 1); refused != nil {
			break
		}
		g, err := s.Stage(fmt.Sprintf("a%d", made))
		if err != nil {
			t.Fatal(err)
		}
		g.For("a", nil)
		if err := complete(t, s, d, g, "parent"); err != nil {
			t.Fatal(err)
		}
		release()
		if unfollow, err = s.Follow(g.ID(), "a"); err != nil {
			t.Fatal(err)
		}
		s.Quiesce()
		if _, bytes := s.Line(g.ID()); bytes != layerBytes {
			t.Errorf("the line of branch %d has %d bytes, want %d", made, bytes, layerBytes)
		}
		if _, err := s.Delete(g.tag, DeleteForce); err != nil {
			t.Fatal(err)
		}
	}
	if made != 12 {
		t.Errorf("lines of a take %d of 16 places, want three quarters", made)
	}
	if refused == nil || refused.Used != 12*layerBytes || refused.Own != 0 || refused.All != 0 ||
		!strings.Contains(refused.Error(), "suspend or delete some of these sandboxes") {
		t.Errorf("%+v: %v", refused, refused)
	}
	b, refused := reserveRAM(t, s, "b", 1)
	if refused != nil {
		t.Fatalf("b: %v", refused)
	}
	c, refused := reserveRAM(t, s, "c", 1)
	if refused != nil {
		t.Fatalf("c beside b: %v", refused)
	}
	b()
	c()
	unfollow()
	s.Quiesce()
	if release, refused := reserveRAM(t, s, "a", 1); refused != nil {
		t.Errorf("a, after one of its sandboxes is deleted: %v", refused)
	} else {
		release()
	}
}

// followed publishes the branch "a" of the owner "a". A sandbox of this owner follows the branch.
// The result is the branch's ID.
func followed(t *testing.T, s *Store, d dirs) (id string) {
	t.Helper()
	g, err := s.Stage("a")
	if err != nil {
		t.Fatal(err)
	}
	g.For("a", nil)
	if err := complete(t, s, d, g, "parent"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Follow(g.ID(), "a"); err != nil {
		t.Fatal(err)
	}
	return g.ID()
}

// A branch that is deleted before it is on disk is never written to disk while a sandbox follows
// it. Such a branch counts as part of the sandbox's line, even after a restart, and does not delay
// the branches of another owner.
func TestDeletedUnflushedBranchIsALine(t *testing.T) {
	s, d, catchUp := slowDisk(t, 17)
	id := followed(t, s, d)
	if _, err := s.Delete("a", DeleteForce); err != nil {
		t.Fatal(err)
	}
	catchUp()
	s.Quiesce()
	if got := s.lines()["a"]; got != layerBytes {
		t.Errorf("the lines of a have %d bytes, want %d", got, layerBytes)
	}
	if release, refused := reserveRAM(t, s, "b", 30); refused != nil {
		t.Errorf("a large branch of b: %v", refused)
	} else {
		release()
	}
	s.Close()

	s = d.open(t)
	if _, err := s.Follow(id, "a"); err != nil {
		t.Fatal(err)
	}
	if got, waiting := s.lines(), s.unflushed(); got["a"] != layerBytes || len(got) != 1 || len(waiting) != 0 {
		t.Errorf("after a restart: lines %v, to be written %v", got, waiting)
	}
}
