package store

import (
	"errors"
	"fmt"
	"testing"
)

// A failed branch is in the list until it is deleted or a branch with its tag is made. The number
// of failed branches is bounded, because they are in memory, and a client can make any number of
// branches that fail.
func TestFailedBranchesAreBounded(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	defer s.Close()
	publish(t, s, d, "base", "")
	for n := range maxFailed + 50 {
		s.ListFailed(fmt.Sprintf("failed-%d", n), "", errors.New("no room"))
	}
	if n := len(s.List()); n != maxFailed+1 {
		t.Errorf("%d snapshots are listed, want %d failed ones and one", n, maxFailed)
	}
	if _, err := s.Detail("failed-0"); err == nil {
		t.Error("the oldest is still listed")
	}
	last := fmt.Sprintf("failed-%d", maxFailed+49)
	if i, err := s.Detail(last); err != nil || i.Damage == "" {
		t.Errorf("the latest: %+v, %v", i, err)
	}
	if _, err := s.Delete(last, DeleteSingle); err != nil {
		t.Error(err)
	}
	if i, err := s.Detail("base"); err != nil || i.Damage != "" {
		t.Errorf("a whole one: %+v, %v", i, err)
	}
}

// If many branches of an owner fail, they displace only failed branches of the same owner.
func TestFailedBranchesOfOthersStay(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	defer s.Close()
	s.ListFailed("other", "b", errors.New("no room"))
	for n := range 200 { // like branches that a restart has lost, these have no owner
		s.ListFailed(fmt.Sprintf("lost-%d", n), "", errors.New("lost"))
	}
	for n := range maxFailed + 50 {
		s.ListFailed(fmt.Sprintf("failed-%d", n), "a", errors.New("no room"))
	}
	if i, err := s.Detail("other"); err != nil || i.Damage == "" {
		t.Errorf("of the other owner: %+v, %v", i, err)
	}
	for n := range 200 {
		if i, err := s.Detail(fmt.Sprintf("lost-%d", n)); err != nil || i.Damage == "" {
			t.Errorf("a lost branch of an unknown owner: %+v, %v", i, err)
		}
	}
	if n := len(s.List()); n != maxFailed {
		t.Errorf("%d snapshots are listed, want %d", n, maxFailed)
	}
	if _, err := s.Detail("failed-50"); err == nil {
		t.Error("the owner with the most has its oldest still")
	}
}
