package main

import (
	"bufio"

	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/vmtest"
)

// reportDir receives the events of each run as NAME.json and its results as NAME.xml, for CI.
const reportDir = "out/tests"

// outcome is the result of a run of go test.
type outcome int

const (
	passed outcome = iota
	failed
	lost // the emulated host has disappeared, or a test or the host hung
)

// counts holds numbers of tests, including subtests.
type counts struct {
	passed, failed, skipped int
	top                     int // tests other than subtests, whatever their result
	vm                      int // skipped VM tests that are run elsewhere
	lacking                 int // tests that were skipped because this checkout lacks something optional
	// Failed packages and tests with their last lines of output, in the order of failure.
	failures []string
}

func (c *counts) add(d counts) {
	c.failures = append(c.failures, d.failures...)
	c.passed, c.failed, c.skipped = c.passed+d.passed, c.failed+d.failed, c.skipped+d.skipped
	c.top, c.vm, c.lacking = c.top+d.top, c.vm+d.vm, c.lacking+d.lacking
}

func (c counts) String() string {
	s := fmt.Sprintf("%d passed, %d failed, %d skipped", c.passed, c.failed, c.skipped)
	if c.vm > 0 {
		s += fmt.Sprintf(" (%d of them VM tests)", c.vm)
	}
	return s
}

// printFailures repeats the names of failed tests and their last lines of output. The full output
// is hundreds of lines above, and CI keeps only the end of a log.
func (c counts) printFailures(out io.Writer) {
	for _, failure := range c.failures {
		fmt.Fprintf(out, "---- failed: %s", failure)
	}
}

// run is a run of tests. gotestsum prints the output, and testrun counts the tests.
type run struct {
	name  string // name of the report files in reportDir
	out   io.Writer
	args  []string // arguments of go test
	raw   []string // command that prints events in place of go test
	env   []string
	each  bool          // print a line for every test, not only for every package
	limit time.Duration // time after which everything is killed; 0: only the -timeout of go test applies

	total  counts
	output map[string][]string // by package and test: last lines of output of the tests that have not ended
	lost   bool
}

// programVariable is the environment variable with the path of a gotestsum to use.
const programVariable = "GOTESTSUM"

// gotestsum returns the path of gotestsum. It builds the program if necessary.
func gotestsum(ctx context.Context) (string, error) {
	if path := os.Getenv(programVariable); path != "" {
		return path, nil
	}
	cmd := exec.CommandContext(ctx, "go", "-C", "internal/lint/tools", "tool", "-n", "gotestsum")
	cmd.Stderr = os.Stderr
	path, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build gotestsum: %w", err)
	}
	return strings.TrimSpace(string(path)), nil
}

// do(ctx) runs the tests. An error means that they could not be run.
func (r *run) do(ctx context.Context) (outcome, error) {
	program, err := gotestsum(ctx)
	if err != nil {
		return failed, err
	}
	if err := os.MkdirAll(reportDir, 0o755); err != nil {
		return failed, err
	}
	file := filepath.Join(reportDir, r.name)
	format := "pkgname-and-test-fails"
	if r.each {
		format = "testname"
	}
	args := []string{"--format", format, "--format-icons", "text", "--format-hide-empty-pkg",
		"--hide-summary", "skipped,failed", "--jsonfile", file + ".json", "--junitfile", file + ".xml"}
	if r.raw != nil {
		args = append(append(args, "--raw-command", "--"), r.raw...)
	} else {
		args = append(append(args, "--"), r.args...)
	}
	caller := ctx
	if r.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.limit)
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), r.env...)
	cmd.Stdout, cmd.Stderr = r.out, os.Stderr
	// gotestsum, go test, the -exec program and the test are in one process group, so that they are
	// killed together. A process that survived would keep the output open.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	runErr := cmd.Run()
	var exit *exec.ExitError
	if caller.Err() != nil {
		return failed, caller.Err()
	}
	if ctx.Err() == nil && runErr != nil && !errors.As(runErr, &exit) {
		return failed, fmt.Errorf("run gotestsum: %w", runErr)
	}
	if err := r.count(file + ".json"); err != nil {
		return failed, fmt.Errorf("read the events of go test: %w", err)
	}
	r.hung()
	switch {
	case ctx.Err() != nil:
		fmt.Fprintf(r.out, "KILLED after %v\n", r.limit)
		return lost, nil
	case r.lost:
		return lost, nil
	case runErr != nil:
		return failed, nil
	}
	return passed, nil
}

// event is a line of go test -json; see go doc test2json.
type event struct {
	Action, Package, Test, Output string
}

// count reads the events of a run from a file. The last event is incomplete if the run was killed.
func (r *run) count(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r.output = make(map[string][]string)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			r.handle(e)
		}
	}
	return lines.Err()
}

// maxLines is how many lines at the end of a test's output are kept.
const maxLines = 80

// lastLines is how many of these lines are repeated at the end of a run if the test has failed.
const lastLines = 12

func (r *run) handle(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		r.lost = r.lost || isLost(e.Output)
		lines := append(r.output[key], e.Output)
		r.output[key] = lines[max(0, len(lines)-maxLines):]
	case "pass", "fail", "skip":
		if e.Test != "" {
			r.testEnd(e, r.output[key])
		}
		delete(r.output, key)
	}
}

// isLost reports whether a line means that the whole run is lost, whichever test was running. Such
// lines are printed by forkd machine exec and by package testing.
func isLost(line string) bool {
	return strings.HasPrefix(line, "exit status 125") || strings.HasPrefix(line, "panic: test timed out after")
}

func (r *run) testEnd(e event, output []string) {
	c := &r.total
	if !strings.Contains(e.Test, "/") {
		c.top++
	}
	switch e.Action {
	case "pass":
		c.passed++
	case "skip":
		c.skipped++
		why := strings.Join(output, "")
		if strings.Contains(why, vmtest.Lacking) {
			c.lacking++
		}
		if strings.Contains(why, vmtest.LeftOut) {
			c.vm++
		} else {
			fmt.Fprintf(r.out, "---- %s %s skipped:\n%s", e.Package, e.Test, why)
		}
	case "fail":
		c.failed++
		output = output[max(0, len(output)-lastLines):]
		c.failures = append(c.failures, fmt.Sprintf("%s %s\n%s", e.Package, e.Test, strings.Join(output, "")))
	}
}

// hung prints the last output of the tests that have not ended.
func (r *run) hung() {
	for _, key := range slices.Sorted(maps.Keys(r.output)) {
		if !strings.HasSuffix(key, " ") {
			fmt.Fprintf(r.out, "---- %s did not end:\n%s", key, strings.Join(r.output[key], ""))
		}
	}
}
