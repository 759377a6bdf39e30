package report

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func sample() *Report {
	t := &Table{Title: "speed", Columns: []Column{{Name: "n"}, {Name: "p50 ms", Digits: 1}, {Name: "pool"}}}
	t.Add(1, 2.345, "warm")
	t.Add(100, nil, "cold")
	t.Notef("%d runs", 3)
	return &Report{Bench: "fork", Host: Host{Accel: "tcg", CPUs: 1}, Tables: []*Table{t}}
}

func TestTextIsAlignedAndLeavesMissingFiguresBlank(t *testing.T) {
	var b strings.Builder
	if _, err := sample().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"|    n | p50 ms | pool |",
		"| ---: |   ---: | ---: |",
		"|    1 |    2.3 | warm |",
		"|  100 |        | cold |",
		"",
		"* 3 runs",
	}, "\n")
	if !strings.Contains(b.String(), want) {
		t.Fatalf("got\n%s\nwant\n%s", &b, want)
	}
}

func TestJSONHasFiguresByName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	if err := sample().Save(path); err != nil {
		t.Fatal(err)
	}
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Host   Host
		Tables []struct {
			Rows []map[string]any
		}
	}
	if err := json.Unmarshal(p, &got); err != nil {
		t.Fatal(err)
	}
	rows := got.Tables[0].Rows
	if got.Host.Accel != "tcg" || rows[0]["p50 ms"] != 2.345 || rows[1]["p50 ms"] != nil || rows[1]["n"] != 100.0 {
		t.Fatalf("%s", p)
	}
}

func TestRowOfWrongLengthIsReported(t *testing.T) {
	r := sample()
	r.Tables[0].Add(1)
	if _, err := r.WriteTo(&strings.Builder{}); err == nil {
		t.Error("printed")
	}
	if err := r.Save(filepath.Join(t.TempDir(), "r.json")); err == nil {
		t.Error("saved")
	}
}

func TestQuantile(t *testing.T) {
	samples := []float64{5, 1, 4, 2, 3}
	for q, want := range map[float64]float64{0: 1, 0.2: 1, 0.5: 3, 0.99: 5, 1: 5} {
		if got := Quantile(samples, q); got != want {
			t.Errorf("quantile %v = %v, want %v", q, got, want)
		}
	}
	if samples[0] != 5 {
		t.Error("the samples were sorted in place")
	}
	if Cell(Quantile(nil, 0.5)) != nil || Cell(math.Inf(1)) != nil || Cell(1) != 1.0 {
		t.Error("a figure that is none must be nil")
	}
	if got := Millis(1500 * time.Microsecond); got[0] != 1.5 {
		t.Errorf("1.5 ms = %v", got)
	}
}
