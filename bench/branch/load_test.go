package main

import (
	"math"
	"testing"
	"time"
)

func TestLostWork(t *testing.T) {
	at := func(ms int, pages uint64, took int) mark {
		return mark{time.Duration(ms) * time.Millisecond, pages, time.Duration(took) * time.Millisecond}
	}
	const branch = 300 * time.Millisecond
	for _, c := range []struct {
		name             string
		calm, begin, end mark
		lostMS           float64
	}{
		{"undisturbed", at(100, 7, 2), at(1100, 2007, 2), at(1500, 2807, 2), 0},
		{"stood still all the time", at(0, 0, 2), at(1000, 1000, 2), at(1300, 1000, 2), 300},
		{"half as fast", at(0, 0, 2), at(1000, 1000, 2), at(1300, 1150, 2), 150},
		{"ran undisturbed after the branch", at(0, 0, 2), at(1000, 1000, 2), at(1700, 1550, 250), 150},
		{"too slow answers", at(0, 0, 2), at(1000, 1000, 2), at(1700, 1550, 700), math.NaN()},
	} {
		lost := lostWork(c.calm, c.begin, c.end, branch) * 1000
		if math.Abs(lost-c.lostMS) > 1e-6 || math.IsNaN(lost) != math.IsNaN(c.lostMS) {
			t.Errorf("%s: lost %v ms, want %v", c.name, lost, c.lostMS)
		}
	}
}
