package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// If a host crashes, or if some tests were not run, the tests of the package have not passed.
func TestReportPackage(t *testing.T) {
	const begin = "\x16=== RUN   TestA\n"
	const pass = begin + "\x16--- PASS: TestA (0.10s)\n\x16=== NAME  \n"
	const end = "\x16PASS\n"
	chdirWithProgram(t, t.TempDir())
	for _, c := range []struct {
		name, log, status string
		want              string // part of the error; "": no error
		passed            int
	}{
		{"passed", pass + end, "0\n", "", 1},
		{"failed", begin + "    x.go:1: wrong\n\x16--- FAIL: TestA (0.10s)\n\x16FAIL\n", "1\n", "status 1", 0},
		{"skipped", begin + "\x16--- SKIP: TestA (0.10s)\n" + end, "0\n", "1 tests skipped", 0},
		{"none ran", end, "0\n", "0 tests ran of 1", 0},
		{"the host died", begin, "", "did not end", 0},
		{"the host died after the tests", pass, "", "did not end", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			result := filepath.Join(t.TempDir(), "p")
			if err := os.WriteFile(result+".log", []byte(c.log), 0o644); err != nil {
				t.Fatal(err)
			}
			if c.status != "" {
				if err := os.WriteFile(result+".status", []byte(c.status), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			var out bytes.Buffer
			got, err := reportPackage(t.Context(), "ept", vmPkg{"p", []string{"TestA"}}, result, &out)
			if got.passed != c.passed || c.want == "" && err != nil || c.want != "" &&
				(err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, %v, want %d passed and %q\n%s", got, err, c.passed, c.want, &out)
			}
		})
	}
	if _, err := reportPackage(t.Context(), "ept", vmPkg{"p", []string{"TestA"}}, filepath.Join(t.TempDir(), "p"),
		nil); err == nil {
		t.Error("tests that never began have passed")
	}
}

// The tests that are listed by name exist and need KVM. Without this check, a renamed test would be
// omitted silently.
func TestIntelTestsExist(t *testing.T) {
	t.Chdir("../../..")
	source, err := os.ReadFile("internal/vmm/kvm/probe_test.go")
	if err != nil || !strings.Contains(string(source), "func "+probe().tests[0]+"(") {
		t.Errorf("the probe is not where it was: %v", err)
	}
	all, err := intelTests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range append(smokeTests(), coreTests()...) {
		i := slices.IndexFunc(all, func(q vmPkg) bool { return p.path == q.path })
		for _, name := range p.tests {
			if i < 0 || !slices.Contains(all[i].tests, name) {
				t.Errorf("%s has no VM test %s", p.path, name)
			}
		}
	}
	found, err := discover(t.Context(), []string{clientPackage})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range leftOut {
		if !slices.Contains(found[0].tests, name) {
			t.Errorf("%s, which is left out, is no VM test", name)
		}
	}
	job := intelJob{packages: all, core: true}
	for _, h := range intelHosts() {
		if got := len(job.of(h)); h.core != (got == len(coreTests())) {
			t.Errorf("%s runs tests of %d packages", h.name, got)
		}
	}
}

// A choice with a typo must cause an error, not a successful run of no tests.
func TestChoice(t *testing.T) {
	packages := []vmPkg{{module + "a", []string{"TestOne", "TestTwo"}}, {module + "b", []string{"TestOne"}}}
	for _, c := range []struct {
		args []string
		want []vmPkg
	}{
		{nil, packages},
		{[]string{"ept", "./a", "no-ept"}, packages[:1]},
		{[]string{"-run", "Two$"}, []vmPkg{{module + "a", []string{"TestTwo"}}}},
		{[]string{"./b", "-run", "Two$"}, nil},
		{[]string{"./c"}, nil},
	} {
		chosen, err := parseChoice(c.args)
		if err != nil {
			t.Fatal(err)
		}
		same := func(a, b vmPkg) bool { return a.path == b.path && slices.Equal(a.tests, b.tests) }
		if got := chosen.of(packages); !slices.EqualFunc(got, c.want, same) {
			t.Errorf("%v: got %v, want %v", c.args, got, c.want)
		}
	}
	for _, args := range [][]string{{"-run"}, {"-run", "("}} {
		if _, err := parseChoice(args); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
	if chosen, _ := parseChoice([]string{"ept", "./a", "-run", "x"}); !slices.Equal(chosen.hosts, []string{"ept"}) {
		t.Errorf("hosts: %v", chosen.hosts)
	}
	t.Chdir("../../..")
	if err := intel(t.Context(), []string{"all", "ept", "./internal/vmm/kvm", "-run", "NoSuchTest"}); err == nil {
		t.Error("a choice of no tests is accepted")
	}
}
