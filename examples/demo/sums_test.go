package main

import (
	"os/exec"
	"strings"
	"testing"
)

func TestSumsDiffer(t *testing.T) {
	seen := make(map[string]int)
	for i := range 1000 {
		s := sumOf(i)
		if j, twice := seen[s.code]; twice {
			t.Errorf("sums %d and %d are both %s", j, i, s.code)
		}
		seen[s.code] = i
	}
}

// TestSums compares the sums with numpy itself, if it is installed.
func TestSums(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil || exec.Command(python, "-c", "import numpy").Run() != nil {
		t.Skip("no python3 with numpy on this host")
	}
	script, want := "import numpy as np\n", ""
	for i := range 1000 {
		s := sumOf(i)
		script += "print(repr(" + s.code + "))\n"
		want += s.want + "\n"
	}
	cmd := exec.Command(python)
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got, wanted := strings.Split(string(out), "\n"), strings.Split(want, "\n")
	for i := range min(len(got), len(wanted)) {
		if got[i] != wanted[i] {
			t.Errorf("%s: numpy says %s, want %s", sumOf(i).code, got[i], wanted[i])
		}
	}
	if len(got) != len(wanted) {
		t.Errorf("%d answers, want %d", len(got), len(wanted))
	}
}
