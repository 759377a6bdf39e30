package main

import (
	"math"
	"testing"
	"time"
)

func TestRate(t *testing.T) {
	marks, err := parseMarks([]byte(`[[100, 0], [101, 1000], [102, 1000], [103, 3000]]`))
	if err != nil {
		t.Fatal(err)
	}
	at := func(s float64) time.Time { return time.Unix(0, int64(s*1e9)) }
	for _, c := range []struct{ from, to, want float64 }{
		{100, 101, 1000},
		{101, 102, 0},       // it stood still
		{100.5, 102.5, 750}, // between marks
		{100, 100.1, math.NaN()},
		{99, 101, math.NaN()},
		{102, 104, math.NaN()},
	} {
		got := rate(marks, clock{ahead: 10, grain: 0.1}, at(c.from-10), at(c.to-10))
		if math.Abs(got-c.want) > 0.01 || math.IsNaN(got) != math.IsNaN(c.want) {
			t.Errorf("rate from %v to %v = %v, want %v", c.from, c.to, got, c.want)
		}
	}
	if _, err := parseMarks([]byte("Traceback")); err == nil {
		t.Error("accepted what is no progress")
	}
}
