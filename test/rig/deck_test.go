package rig

import (
	"maps"
	"math/rand/v2"
	"testing"
)

func TestDeck(t *testing.T) {
	d := NewDeck(rand.New(rand.NewPCG(1, 2)), Card[string]{3, "a"}, Card[string]{1, "b"})
	for round, want := range []map[string]int{{"a": 1, "b": 1}, {"a": 3, "b": 1}, {"a": 3, "b": 1}} {
		total, got := 0, map[string]int{}
		for _, n := range want {
			total += n
		}
		for range total {
			got[d.Draw()]++
		}
		if !maps.Equal(got, want) {
			t.Errorf("round %d: %v, want %v", round, got, want)
		}
	}
}
