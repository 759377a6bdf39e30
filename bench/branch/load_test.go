package main

import (
	"math"
	"testing"
	"time"
)

func TestDisturbed(t *testing.T) {
	at := func(ms, took int, pages uint64) mark {
		asked := time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond)
		return mark{asked, asked.Add(time.Duration(took) * time.Millisecond), pages}
	}
	for _, c := range []struct {
		name             string
		calm, begin, end mark
		slower, lostMS   float64
	}{
		{"undisturbed", at(0, 2, 0), at(1000, 2, 1000), at(1500, 2, 1500), 0, 0},
		{"stood still", at(0, 2, 0), at(1000, 2, 1000), at(1300, 2, 1000), 1, 300},
		{"half as fast", at(0, 2, 0), at(1000, 2, 1000), at(1400, 2, 1200), 0.5, 200},
		{"questions of different length", at(0, 10, 0), at(995, 20, 1000), at(1505, 0, 1250), 0.5, 250},
		{"too short a branch", at(0, 2, 0), at(1000, 2, 1000), at(1009, 2, 1000), math.NaN(), math.NaN()},
		{"too slow an answer", at(0, 2, 0), at(1000, 2, 1000), at(1400, 400, 1200), math.NaN(), math.NaN()},
	} {
		slower, lost := disturbed(c.calm, c.begin, c.end)
		if math.IsNaN(c.slower) {
			if !math.IsNaN(slower) {
				t.Errorf("%s: slower by %v, want no figure", c.name, slower)
			}
			continue
		}
		if ms := lost.Seconds() * 1000; math.Abs(slower-c.slower) > 1e-6 || math.Abs(ms-c.lostMS) > 1e-3 {
			t.Errorf("%s: slower by %v, lost %v ms; want %v, %v ms", c.name, slower, ms, c.slower, c.lostMS)
		}
	}
}
