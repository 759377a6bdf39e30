package main

import (
	"errors"
	"strings"
	"testing"
)

func TestVerdict(t *testing.T) {
	failed := errors.New("exit status 1")
	for _, c := range []struct {
		name, out string
		failed    error
		want      string // part of what was found; "" if the torture passed
		bad       bool
	}{
		{"passed", "=== RUN   TestTorture\n--- PASS: TestTorture (3.00s)\nok\n", nil, "", false},
		{"found", "x\n    torture_test.go:77: seed 1: copy of x: MISMATCH:\n        \tpage 3 is of write 4\n--- FAIL: TestTorture (3.00s)\n",
			failed, "MISMATCH: page 3 is of write 4", false},
		{"other failure", "    torture_test.go:77: seed 1: restore x: confirm\n--- FAIL: TestTorture (3.00s)\n", failed, "confirm", false},
		{"skipped", "--- SKIP: TestTorture (0.00s)\nok\n", nil, "", true},
		{"no test ran", "ok\n", nil, "", true},
		{"build failed", "./x.go:1: undefined\nFAIL\n", failed, "", true},
		{"host lost", "machine exec: the emulated host is gone\nFAIL\n", failed, "", true},
		{"time limit", "panic: test timed out after 40m0s\n--- FAIL: TestTorture (3.00s)\n", failed, "", true},
		{"another test", "--- FAIL: TestTortureOther (3.00s)\n", failed, "", true},
	} {
		found, err := verdict(c.out, c.failed)
		if (err != nil) != c.bad || !strings.Contains(found, c.want) || (found == "") != (c.want == "") {
			t.Errorf("%s: %q, %v", c.name, found, err)
		}
	}
}

func TestBranchesIn(t *testing.T) {
	const out = "08:03:13 9.8 s: 7 branches (live 1\n    torture_test.go:64: 12 branches (live 9, diff 3, full 0), 1 children\n"
	if n := branchesIn(out); n != "12" {
		t.Errorf("%q, want 12", n)
	}
	if n := branchesIn("ok\n"); n != "?" {
		t.Errorf("%q without counts", n)
	}
	const daemon = "    torture_test.go:52: seed 1: 22 branches (live 9, diff 3, full 0)\n"
	if n := branchesIn(daemon); n != "22" {
		t.Errorf("%q through a daemon, want 22", n)
	}
}

func TestChoose(t *testing.T) {
	all, err := choose("")
	if err != nil || len(all) < 2 {
		t.Fatalf("%d mutants, %v", len(all), err)
	}
	some, err := choose(all[1].Name + "," + all[0].Name)
	if err != nil || len(some) != 2 || some[0].Name != all[1].Name {
		t.Errorf("%+v, %v", some, err)
	}
	if _, err := choose("no-such"); err == nil {
		t.Error("a mutant that does not exist is chosen")
	}
}
