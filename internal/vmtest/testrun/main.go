// Command testrun runs the project's tests and checks that no test was left out. `testrun host`
// runs all tests of this host. `testrun vm` runs the tests that boot VMs; if KVM is not usable
// here, it runs them in the emulated host. `testrun intel` runs tests on an emulated Intel host.
// scripts/test calls testrun after scripts/build.
//
// It runs gotestsum, which runs `go test`, prints the output of tests and writes files for CI to
// out/tests. testrun itself finds the VM tests in the source (see discover.go), distributes them
// among emulated hosts, restarts a host that hangs, and decides which tests may be skipped.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/vmm/kvm"
)

// Time limits of one package. VM tests run on an emulated CPU.
const (
	hostLimit = 20 * time.Minute
	vmLimit   = 25 * time.Minute
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	err := errors.New("usage: testrun host | vm [package ...] | intel all|torture")
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "host":
			err = hostTests(ctx)
		case "vm":
			err = vmTests(ctx, os.Args[2:])
		case "intel":
			err = intel(ctx, os.Args[2:])
		}
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "testrun: %v\n", err)
		os.Exit(1)
	}
}

// hostTests runs all tests on this host. VM tests skip themselves there.
func hostTests(ctx context.Context) error {
	start := time.Now()
	r := &run{name: "host", out: os.Stdout, args: []string{"-timeout", hostLimit.String(), "./..."},
		env: []string{"FORKD_TEST_HOST=1"}}
	outcome, err := r.do(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("host tests: %v in %.0f s\n", r.total, time.Since(start).Seconds())
	r.total.printFailures(os.Stdout)
	if outcome != passed {
		return errors.New("host tests failed")
	}
	return nil
}

// vmTests runs the tests that boot VMs, in the packages that match names (as for go list) or in all
// packages. A skipped test counts as failed, because this host has everything that tests need. The
// only exception is a skip whose reason begins with vmtest.Lacking.
func vmTests(ctx context.Context, names []string) error {
	all := len(names) == 0
	if all {
		names = []string{"./..."}
	}
	packages, err := discover(ctx, names)
	if err != nil {
		return err
	}
	hosts := []host{thisHost{}}
	if err := kvm.Probe(); err != nil {
		hosts = machines()
		fmt.Printf("VM tests run in %d emulated hosts: %v\n", len(hosts), err)
	}
	jobs, beside := plan(all, hosts, memory(), split(packages, len(hosts)))
	start := time.Now()
	total, failed := runJobs(ctx, hosts, jobs, beside...)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	fmt.Printf("VM tests: %v in %.0f s\n", total, time.Since(start).Seconds())
	total.printFailures(os.Stdout)
	if len(failed) > 0 {
		return fmt.Errorf("VM tests failed: %v", failed)
	}
	return nil
}

// vmPackage runs the VM tests of a package. If the host is lost or hangs, vmPackage repeats the
// tests once.
func vmPackage(ctx context.Context, h host, p vmPkg, out io.Writer) (counts, error) {
	for try := 1; ; try++ {
		if err := h.start(ctx); err != nil {
			return counts{}, err
		}
		r := &run{
			name: p.name(try), out: out, each: true, env: h.env(), limit: vmLimit + time.Minute,
			args: append(h.args(), "-count=1", "-timeout", vmLimit.String(), "-run", p.pattern(), p.path),
		}
		outcome, err := r.do(ctx)
		switch {
		case err != nil:
			return r.total, err
		case outcome == lost && try == 1 && h.restart(ctx):
			fmt.Fprintf(out, "RETRY %s: the emulated host was lost or hung and has been restarted\n", p.path)
		case outcome != passed:
			return r.total, errors.New("see above")
		default:
			return r.total, p.complete(r.total)
		}
	}
}

// name returns the name of the report files of one try.
func (p vmPkg) name(try int) string {
	return fmt.Sprintf("%s.%s.%d", p.short(), p.tests[0], try)
}

// complete returns an error if the run was incomplete although no test failed.
func (p vmPkg) complete(c counts) error {
	switch {
	case c.skipped > c.lacking:
		return fmt.Errorf("%d tests skipped, where none may", c.skipped-c.lacking)
	case c.top < len(p.tests):
		return fmt.Errorf("%d tests ran of %d", c.top, len(p.tests))
	}
	return nil
}
