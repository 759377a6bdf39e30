package cleanup

import (
	"slices"
	"testing"
)

func TestRunUndoesInReverseOnce(t *testing.T) {
	var got []int
	var s Stack
	for i := range 3 {
		s.Add(func() { got = append(got, i) })
	}
	s.Run()
	s.Run()
	if want := []int{2, 1, 0}; !slices.Equal(got, want) {
		t.Errorf("ran %v, want %v", got, want)
	}
}

func TestReleaseKeepsEverything(t *testing.T) {
	var s Stack
	s.Add(func() { t.Error("a released step ran") })
	s.Release()
	s.Run()
}
