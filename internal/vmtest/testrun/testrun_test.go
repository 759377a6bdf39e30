package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestVMTestsOf(t *testing.T) {
	const src = `package p
func TestMain(m *testing.M) { vmtest.Load(nil) }
func TestDirect(t *testing.T) { a := vmtest.Load(t); _ = a }
func TestProbe(t *testing.T) { t.Run("x", func(t *testing.T) { vmtest.NeedKVM(t) }) }
func TestCounts(t *testing.T) { c := opcount.Start(t); _ = c }
func TestThroughHelpers(t *testing.T) { outer(t) }
func TestMethod(t *testing.T) { h{}.boot(t) }
func TestHost(t *testing.T) { other(t); vmtest.Cmdline() }
func outer(t *testing.T) { inner(t) }
func inner(t *testing.T) { vmtest.Load(t) }
func other(t *testing.T) {}
type h struct{}
func (h) boot(t *testing.T) { outer(t) }
`
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"TestCounts", "TestDirect", "TestMethod", "TestProbe", "TestThroughHelpers"}
	if got := vmTestsOf([]*ast.File{f}); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Every test is in one shard. Shards that take longer come first, and the last shards are small.
func TestSplit(t *testing.T) {
	var many []string
	for i := range 43 {
		many = append(many, fmt.Sprintf("Test%02d", i))
	}
	packages := []vmPkg{{"a", append([]string{"TestApply"}, many...)}, {"b", []string{"TestB"}}, {"c", many[:5]}}
	got := split(packages, 2)
	var sizes []int
	found := map[string][]string{}
	for _, p := range got {
		sizes = append(sizes, len(p.tests))
		found[p.path] = append(found[p.path], p.tests...)
	}
	if want := []int{1, 10, 8, 6, 4, 4, 4, 4, 4, 3, 1, 1}; !slices.Equal(sizes, want) {
		t.Errorf("sizes %v, want %v", sizes, want)
	}
	if got[0].tests[0] != "TestApply" || got[1].tests[1] != "Test08" {
		t.Errorf("the first shards have %q and %q", got[0].tests, got[1].tests)
	}
	for _, p := range packages {
		if slices.Sort(found[p.path]); !slices.Equal(found[p.path], slices.Sorted(slices.Values(p.tests))) {
			t.Errorf("%s: %q, want %q", p.path, found[p.path], p.tests)
		}
	}
}

// Tests that use the same rare snapshot are one shard, even if one of them is slow.
func TestTogether(t *testing.T) {
	got := split([]vmPkg{{"a", []string{"TestA", "TestB", "TestForksBeforeAllIsThere", "TestHooks", "TestVMEnds"}}}, 2)
	want := []vmPkg{{"a", []string{"TestForksBeforeAllIsThere", "TestHooks", "TestVMEnds"}},
		{"a", []string{"TestA", "TestB"}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The tests that call loadDistribution are the tests that testrun keeps together.
func TestTogetherAreThoseOfTheDistributionsKernel(t *testing.T) {
	t.Chdir("../../..")
	names, err := filepath.Glob("test/integration/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, name := range names {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(fn.Name.Name, "Test") {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				if x, ok := n.(*ast.Ident); ok && x.Name == "loadDistribution" {
					found = append(found, fn.Name.Name)
				}
				return true
			})
		}
	}
	if slices.Sort(found); !slices.Equal(found, together) {
		t.Errorf("the tests %q call loadDistribution, and the shard has %q", found, together)
	}
}

// Every name in slowTests is the name of a VM test.
func TestSlowTestsExist(t *testing.T) {
	t.Chdir("../../..")
	found, err := discover(t.Context(), []string{"./test/..."})
	if err != nil {
		t.Fatal(err)
	}
	for name := range slowTests {
		if !slices.ContainsFunc(found, func(p vmPkg) bool { return slices.Contains(p.tests, name) }) {
			t.Errorf("no package of ./test has a VM test %s", name)
		}
	}
}

func TestLinesOfTwoWritersStayWhole(t *testing.T) {
	var out bytes.Buffer
	var mu sync.Mutex
	one, two := &lineWriter{prefix: "1| ", mu: &mu, to: &out}, &lineWriter{prefix: "2| ", mu: &mu, to: &out}
	for _, part := range []struct {
		w    *lineWriter
		text string
	}{{one, "begin"}, {two, "other\nrest"}, {one, "ning\nand\n"}, {two, " of it\n"}} {
		if _, err := part.w.Write([]byte(part.text)); err != nil {
			t.Fatal(err)
		}
	}
	const want = "2| other\n1| beginning\n1| and\n2| rest of it\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// chdirWithProgram builds gotestsum and changes to dir, where the reports of runs are written.
func chdirWithProgram(t *testing.T, dir string) {
	t.Helper()
	t.Chdir("../../..")
	program, err := gotestsum(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(programVariable, program)
	t.Chdir(dir)
}

// TestRun runs go test on a module that it creates.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module m\n\ngo 1.24\n")
	chdirWithProgram(t, dir)
	cases := []struct {
		name, body string
		outcome    outcome
		total      counts
		prints     string
	}{
		{"pass", `t.Run("sub", func(t *testing.T) {})`, passed, counts{passed: 2, top: 1}, "PASS TestIt/sub"},
		{"skip", `t.Skip("why not")`, passed, counts{skipped: 1, top: 1}, "why not"},
		{"lack", `t.Skip("this checkout lacks: history")`, passed, counts{skipped: 1, lacking: 1, top: 1}, "history"},
		{"fail", `t.Error("because")`, failed, counts{failed: 1, top: 1}, "because"},
		{"build", `nonsense`, failed, counts{}, "undefined: nonsense"},
		{"hang", `println("last words"); select {}`, lost, counts{}, "test timed out"},
		{"machine", `println("exit status 125"); t.Fail()`, lost, counts{failed: 1, top: 1}, "exit status 125"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			write("m_test.go", "package m\nimport \"testing\"\nfunc TestIt(t *testing.T) {\n"+c.body+"\n}\n")
			var out bytes.Buffer
			r := &run{name: c.name, out: &out, each: true, args: []string{"-timeout", "2s", "."}}
			got, err := r.do(t.Context())
			var last bytes.Buffer
			r.total.printFailures(&last)
			if strings.Contains(last.String(), "---- failed: m TestIt\n") != (c.total.failed > 0) {
				t.Errorf("%d tests failed, and the end says %q", c.total.failed, &last)
			}
			r.total.failures = nil
			if err != nil || got != c.outcome || !reflect.DeepEqual(r.total, c.total) {
				t.Errorf("outcome %v, %+v, %v: want %v, %+v", got, r.total, err, c.outcome, c.total)
			}
			if !strings.Contains(out.String(), c.prints) {
				t.Errorf("printed %q: want %q in it", out.String(), c.prints)
			}
		})
	}
}

func TestEndNamesJobsWithoutTests(t *testing.T) {
	jobs := []job{
		{name: "clients", do: func(_ context.Context, _ host, out io.Writer) (counts, error) {
			fmt.Fprintln(out, strings.Repeat("passed\n", lastLines)+"schemathesis: a case failed")
			return counts{}, errors.New("scripts/compat: exit status 1")
		}},
		{name: "tests", do: func(context.Context, host, io.Writer) (counts, error) {
			return counts{failed: 1, failures: []string{"pkg TestIt\n"}}, errors.New("see above")
		}},
		{name: "good", do: func(context.Context, host, io.Writer) (counts, error) { return counts{passed: 1}, nil }},
		{name: "short", title: "title", do: func(context.Context, host, io.Writer) (counts, error) {
			return counts{}, errors.New("said nothing")
		}},
	}
	total, failed := runJobs(t.Context(), []host{thisHost{}}, jobs)
	want := []string{
		"clients\n" + strings.Repeat("passed\n", lastLines-1) + "schemathesis: a case failed\n",
		"pkg TestIt\n",
		"short\n[4/4] title\n", // lines of two jobs are not interleaved
	}
	if !slices.Equal(total.failures, want) || !slices.Equal(failed, []string{"clients", "tests", "short"}) {
		t.Errorf("%q failed and the end says %q, want %q", failed, total.failures, want)
	}
}

// A job beside the hosts runs while all hosts are busy, and its failure counts.
func TestJobsBesideTheHosts(t *testing.T) {
	over := make(chan struct{})
	wait := func(context.Context, host, io.Writer) (counts, error) {
		select {
		case <-over:
			return counts{passed: 1}, nil
		case <-t.Context().Done():
			return counts{}, t.Context().Err()
		}
	}
	jobs := []job{{name: "one", do: wait}, {name: "two", do: wait}, {name: "three", do: wait}}
	total, failed := runJobs(t.Context(), []host{thisHost{}, thisHost{}}, jobs,
		job{name: "beside", do: func(_ context.Context, _ host, out io.Writer) (counts, error) {
			close(over)
			fmt.Fprintln(out, "wrong")
			return counts{}, errors.New("exit status 1")
		}})
	if total.passed != 3 || !slices.Equal(failed, []string{"beside"}) ||
		!slices.Equal(total.failures, []string{"beside\n[4/4] \nwrong\n"}) {
		t.Errorf("%d passed, %q failed, and the end says %q", total.passed, failed, total.failures)
	}
}

// Every job runs once. Jobs run beside emulated hosts only if the memory suffices.
func TestPlan(t *testing.T) {
	const clients, intel, faked = "published clients", "kvm-intel", "clients with faked VMs"
	shards := []vmPkg{{"a", []string{"TestA"}}}
	two := []host{machine{"a"}, machine{"b"}}
	for what, c := range map[string]struct {
		all          bool
		hosts        []host
		memory       uint64
		jobs, beside []string
	}{
		"large":    {true, two, 24 << 30, []string{clients, "a"}, []string{intel, faked}},
		"small":    {true, two, 16 << 30, []string{clients, intel, "a"}, []string{faked}},
		"unknown":  {true, two, 0, []string{clients, intel, faked, "a"}, nil},
		"KVM":      {true, []host{thisHost{}}, 64 << 30, []string{clients, intel, faked, "a"}, nil},
		"packages": {false, two, 24 << 30, []string{"a"}, nil},
	} {
		names := func(list []job) (out []string) {
			for _, j := range list {
				out = append(out, j.name)
			}
			return out
		}
		jobs, beside := plan(c.all, c.hosts, c.memory, shards)
		if !slices.Equal(names(jobs), c.jobs) || !slices.Equal(names(beside), c.beside) {
			t.Errorf("%s: %q and beside %q, want %q and %q", what, names(jobs), names(beside), c.jobs, c.beside)
		}
	}
}
