package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/build/debpkg"
	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/emu/bochs"
)

// intelHost is an emulated Intel host, with the name by which scripts/test selects it.
type intelHost struct {
	name string
	host bochs.Host
	core bool // run only coreTests, unless the user has chosen tests
}

// intelHosts returns all emulated Intel hosts. On each host, kvm-intel uses different features. The
// smoke test uses the first host.
func intelHosts() []intelHost {
	return []intelHost{
		{"ept", bochs.Host{CPU: bochs.Skylake}, false},
		{"no-ept", bochs.Host{CPU: bochs.Skylake, KVMIntel: []string{"ept=0"}}, true},
		{"restricted", bochs.Host{CPU: bochs.Skylake, KVMIntel: []string{"unrestricted_guest=0"}}, true},
		{"haswell", bochs.Host{CPU: bochs.Haswell}, true},
	}
}

// chooseHosts returns the hosts with these names, or all hosts if there are no names.
func chooseHosts(names []string) ([]intelHost, error) {
	all := intelHosts()
	if len(names) == 0 {
		return all, nil
	}
	var chosen []intelHost
	for _, name := range names {
		i := slices.IndexFunc(all, func(h intelHost) bool { return h.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no emulated Intel host is called %q", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// Limits of one run on an emulated Intel host. intelTestLimit bounds the tests of a package, in the
// host's own time. The other limits are in real time. A hang is detected much earlier.
const (
	intelTestLimit  = 20 * time.Minute
	smokeLimit      = 25 * time.Minute // other jobs run at the same time
	intelLimit      = 90 * time.Minute
	intelLongLimit  = 24 * time.Hour
	intelPerProgram = 64 << 20 // estimated disk space of a test program, in bytes
)

// smokeTests returns tests that run guests with kvm-intel, fork them and branch them.
func smokeTests() []vmPkg {
	return []vmPkg{
		probe(),
		{path: clientPackage, tests: []string{"TestBranchAndRollback", "TestChildrenOfAGuestWithConnections"}},
	}
}

// probe returns the test that checks whether KVM runs guests correctly. This test is not among the
// results of discover, because the test also covers hosts without KVM.
func probe() vmPkg { return vmPkg{path: module + "internal/vmm/kvm", tests: []string{"TestProbe"}} }

// coreTests returns tests of everything that depends on the kind of host: how guests boot,
// beginning in real mode, and how their memory and processor state are saved, tracked, branched and
// restored. They take about five minutes of CPU time. This includes one minute for booting the
// host.
func coreTests() []vmPkg {
	return []vmPkg{
		probe(),
		{path: machinePackage, tests: []string{"TestBranchAndRollback"}},
		{path: clientPackage, tests: []string{"TestBootMatrix"}},
	}
}

// leftOut lists slow VM tests that are left out here. The other tests use the same features of KVM.
// The only test in the list merges the disk layers of 300 branches.
var leftOut = []string{"TestManyBranchesOfOneVM"}

const (
	module         = "github.com/forkd/forkd/"
	machinePackage = module + "internal/vmm/machine"
	clientPackage  = module + "internal/host/vmmclient"
)

// integrationTests are the integration tests that are run on an emulated Intel host, one for each
// operation on a sandbox. The other integration tests are about the daemon and files rather than
// VMs.
var integrationTests = []string{"TestForkEvalExecKill", "TestBranchMidComputation", "TestRollback",
	"TestForkFromSandbox",
	"TestSuspend", "TestBranchChain", "TestVMEnds", "TestBranchKeepsStreams"}

// intelTests returns the VM tests of the VMM and its client, and the integrationTests.
func intelTests(ctx context.Context) ([]vmPkg, error) {
	found, err := discover(ctx, []string{"./internal/vmm/...", "./internal/host/vmmclient"})
	if err != nil {
		return nil, err
	}
	for i := range found {
		found[i].tests = slices.DeleteFunc(found[i].tests, func(name string) bool { return slices.Contains(leftOut, name) })
	}
	integration, err := discover(ctx, []string{"./test/integration"})
	if err != nil {
		return nil, err
	}
	for _, name := range integrationTests {
		if !slices.Contains(integration[0].tests, name) {
			return nil, fmt.Errorf("./test/integration has no VM test %s: mend the list in testrun", name)
		}
	}
	return append(append([]vmPkg{probe()}, found...), vmPkg{path: integration[0].path, tests: integrationTests}), nil
}

// smokeJob runs the smokeTests. Like clientsJob, it uses a host of its own.
func smokeJob() job {
	return job{name: "kvm-intel", title: "a few VM tests on kvm-intel, in an emulated Intel host", memory: 4 << 30,
		do: func(ctx context.Context, h host, out io.Writer) (counts, error) {
			h.stop()
			total, err := intelJob{limit: smokeLimit, packages: smokeTests()}.run(ctx, intelHosts()[:1], out)
			if errors.Is(err, debpkg.ErrNoArchive) {
				fmt.Fprintf(out, "kvm-intel: LEFT OUT: %v\n", err)
				return total, nil
			}
			return total, err
		}}
}

// intel implements `testrun intel all [HOST ...] [./PACKAGE ...] [-run PATTERN]`, `testrun intel
// torture N [flag ...]` and `testrun intel exchange DIR NEWDIR`. The last one forks the snapshot in
// DIR, which another host has saved, and puts a snapshot of the Intel host into NEWDIR.
func intel(ctx context.Context, args []string) error {
	usage := errors.New("usage: testrun intel all [host ...] [./package ...] [-run pattern] | torture N [flag ...] | " +
		"exchange DIR NEWDIR")
	if len(args) == 0 {
		return usage
	}
	var job intelJob
	hosts := intelHosts()[:1]
	switch args[0] {
	case "all":
		chosen, err := parseChoice(args[1:])
		if err != nil {
			return err
		}
		if hosts, err = chooseHosts(chosen.hosts); err != nil {
			return err
		}
		if job.packages, err = intelTests(ctx); err != nil {
			return err
		}
		job.core = chosen.all()
		if job.packages = chosen.of(job.packages); len(job.packages) == 0 {
			return fmt.Errorf("no VM test for kvm-intel is named by %v", args[1:])
		}
		job.limit = intelLimit
	case "torture":
		if len(args) < 2 {
			return usage
		}
		if _, err := strconv.ParseUint(args[1], 10, 32); err != nil {
			return usage
		}
		job.limit = intelLongLimit
		job.packages = []vmPkg{{path: module + "test/torture", tests: []string{"TestTorture"}}}
		job.flags = append([]string{"-torture.n=" + args[1], "-torture.report=" + tortureReport}, args[2:]...)
	case "exchange":
		if len(args) != 3 {
			return usage
		}
		job.limit, job.in, job.out = smokeLimit, args[1], args[2]
		job.packages = []vmPkg{{path: clientPackage, tests: []string{"TestAnyVendor"}}}
		job.flags = []string{"-exchange.in=/disk" + carryInDir, "-exchange.out=/disk" + carryOutDir}
	default:
		return usage
	}
	_, err := job.run(ctx, hosts, os.Stdout)
	return err
}

// choice selects hosts, packages and tests.
type choice struct {
	hosts, packages []string       // empty: all
	tests           *regexp.Regexp // nil: all
}

func (c choice) all() bool { return len(c.packages) == 0 && c.tests == nil }

// parseChoice parses names of hosts, packages (which begin with "./"), and -run with a pattern as
// for go test.
func parseChoice(args []string) (c choice, err error) {
	for i := 0; i < len(args); i++ {
		dir, isPackage := strings.CutPrefix(args[i], "./")
		switch {
		case isPackage:
			c.packages = append(c.packages, module+dir)
		case args[i] != "-run":
			c.hosts = append(c.hosts, args[i])
		case i+1 == len(args):
			return c, errors.New("-run needs a pattern")
		default:
			i++
			if c.tests, err = regexp.Compile(args[i]); err != nil {
				return c, fmt.Errorf("-run: %w", err)
			}
		}
	}
	return c, nil
}

// of(packages) returns the packages that the choice selects.
func (c choice) of(packages []vmPkg) []vmPkg {
	var out []vmPkg
	for _, p := range packages {
		if len(c.packages) > 0 && !slices.Contains(c.packages, p.path) {
			continue
		}
		p.tests = slices.DeleteFunc(slices.Clone(p.tests), func(name string) bool {
			return c.tests != nil && !c.tests.MatchString(name)
		})
		if len(p.tests) > 0 {
			out = append(out, p)
		}
	}
	return out
}

// intelJob is a set of tests that is run on each of several hosts.
type intelJob struct {
	packages []vmPkg
	core     bool     // on hosts that are marked core, run only coreTests
	flags    []string // flags for every test program
	limit    time.Duration
	in       string // directory whose files the tests find in carryInDir; empty for none
	out      string // new directory for the files that the tests leave in carryOutDir; empty for none
}

// of(h) returns the packages to test on the host h.
func (j intelJob) of(h intelHost) []vmPkg {
	if j.core && h.core {
		return coreTests()
	}
	return j.packages
}

// run prepares the files for the hosts once, and runs the job on all hosts. It runs as many hosts
// at the same time as there are processors. It returns the sum of the counts.
func (j intelJob) run(ctx context.Context, hosts []intelHost, w io.Writer) (total counts, _ error) {
	cache, err := cachedir.Dir()
	if err != nil {
		return total, err
	}
	machine, err := bochs.Open(ctx, cache, func(s string) { fmt.Fprintln(w, "kvm-intel: "+s) })
	if err != nil {
		return total, err
	}
	parent := filepath.Join(cache, "intel")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return total, err
	}
	dir, err := os.MkdirTemp(parent, "run-*")
	if err != nil {
		return total, err
	}
	defer os.RemoveAll(dir)
	tree := filepath.Join(dir, "tree")
	size, err := j.layOut(ctx, cache, tree)
	if err != nil {
		return total, err
	}
	var (
		mu     sync.Mutex
		wg     sync.WaitGroup
		failed []string
		room   = make(chan struct{}, len(machines()))
		start  = time.Now()
	)
	for _, h := range hosts {
		out := &lineWriter{mu: &mu, to: w, prefix: h.name + "| "}
		wg.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			c, err := j.on(ctx, machine, h, disk{cache, filepath.Join(dir, h.name), tree, size}, out)
			if err != nil {
				fmt.Fprintf(out, "FAIL: %v\n", err)
			}
			mu.Lock()
			defer mu.Unlock()
			total.add(c)
			if err != nil {
				failed = append(failed, h.name)
			}
		})
	}
	wg.Wait()
	fmt.Fprintf(w, "kvm-intel tests on %d emulated hosts: %v in %.0f s\n", len(hosts), total,
		time.Since(start).Seconds())
	if len(failed) > 0 {
		return total, fmt.Errorf("kvm-intel tests failed on %v", failed)
	}
	return total, nil
}

// disk has the paths of the files that are put on the disk of a host.
type disk struct {
	cache string // path of the cache; the tests see it under the same path
	dir   string // directory of this run
	tree  string
	size  int64
}

// on(…, h, …) runs the job on the host h and returns the results of the tests. A skipped test
// counts as failed.
func (j intelJob) on(ctx context.Context, m bochs.Machine, h intelHost, d disk, out *lineWriter) (counts, error) {
	if err := os.Mkdir(d.dir, 0o755); err != nil {
		return counts{}, err
	}
	defer os.RemoveAll(d.dir)
	packages := j.of(h)
	run, err := m.Prepare(ctx, h.host, j.script(d.cache, packages), d.dir, d.tree, d.size)
	if err != nil {
		return counts{}, err
	}
	runErr := run.Do(ctx, j.limit, func(line string) { fmt.Fprintf(out, "%s\n", line) })
	results := filepath.Join(d.dir, "out")
	if err := run.Results(ctx, resultsDir, results); err != nil {
		return counts{}, errors.Join(runErr, err)
	}
	results = filepath.Join(results, filepath.Base(resultsDir))
	total, err := report(ctx, h.name, packages, results, out)
	if err == nil && j.out != "" {
		err = os.Rename(filepath.Join(results, filepath.Base(carryOutDir)), j.out)
	}
	return total, errors.Join(runErr, err)
}
