package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/vmtest"
)

// outcome is the result of a run of go test.
type outcome int

const (
	passed outcome = iota
	failed
	lost // the emulated host is gone, or a test or everything hung
)

// counts holds numbers of tests, including subtests.
type counts struct {
	passed, failed, skipped int
	top                     int      // tests that are not subtests, with any result
	vm                      int      // of skipped: VM tests that do not belong to this run
	lacking                 int      // of skipped: because this checkout lacks something optional
	failures                []string // packages, tests and their last lines of output, in the order in which they failed
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

// printFailures repeats the names of the failed tests and their last lines of output. Their full
// output is hundreds of lines further up, and CI keeps only the end of a log.
func (c counts) printFailures(out io.Writer) {
	for _, failure := range c.failures {
		fmt.Fprintf(out, "---- failed: %s", failure)
	}
}

// run is a run of go test.
type run struct {
	out   io.Writer
	args  []string
	env   []string
	each  bool          // report every test, not only every package
	limit time.Duration // everything is killed after that; 0: only go test's -timeout applies

	total    counts
	packages map[string]*counts
	output   map[string][]string // by package and test: its lines
	lost     bool
}

// event is a line of go test -json; see go doc test2json.
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64 // seconds
}

// do runs go test to its end. The error means that it could not be run.
func (r *run) do(ctx context.Context) (outcome, error) {
	r.packages, r.output = make(map[string]*counts), make(map[string][]string)
	caller := ctx
	if r.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.limit)
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, r.args...)...)
	cmd.Env = append(os.Environ(), r.env...)
	// go test, the -exec program and the test are in one process group, so that all of them are
	// killed. Otherwise the rest would keep the output open.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return failed, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return failed, fmt.Errorf("run go test: %w", err)
	}
	if err := r.read(pipe); err != nil {
		return failed, fmt.Errorf("read go test -json: %w", err)
	}
	err = cmd.Wait()
	switch {
	case caller.Err() != nil:
		return failed, caller.Err()
	case ctx.Err() != nil:
		fmt.Fprintf(r.out, "KILLED after %v\n", r.limit)
		return lost, nil
	case r.lost:
		return lost, nil
	case err != nil:
		return failed, nil
	}
	return passed, nil
}

func (r *run) read(from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintf(r.out, "%s\n", lines.Bytes()) // output of go itself
			continue
		}
		r.handle(e)
	}
	return lines.Err()
}

// maxLines is the number of lines kept of a test's output, for its failure.
const maxLines = 80

// lastLines is the number of a failed test's last lines that are repeated at the end.
const lastLines = 12

func (r *run) handle(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		r.lost = r.lost || isLost(e.Output)
		lines := append(r.output[key], e.Output)
		r.output[key] = lines[max(0, len(lines)-maxLines):]
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.packageEnd(e)
		} else {
			r.testEnd(e)
		}
		delete(r.output, key)
	}
}

// isLost recognizes output of forkd machine exec and package testing that blames no particular
// test.
func isLost(line string) bool {
	return strings.HasPrefix(line, "exit status 125") || strings.HasPrefix(line, "panic: test timed out after")
}

func (r *run) testEnd(e event) {
	c := r.packages[e.Package]
	if c == nil {
		c = &counts{}
		r.packages[e.Package] = c
	}
	if !strings.Contains(e.Test, "/") {
		c.top++
	}
	switch e.Action {
	case "pass":
		c.passed++
	case "skip":
		c.skipped++
		why := strings.Join(r.output[e.Package+" "+e.Test], "")
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
		said := r.output[e.Package+" "+e.Test]
		fmt.Fprintf(r.out, "---- %s %s failed:\n%s", e.Package, e.Test, strings.Join(said, ""))
		said = said[max(0, len(said)-lastLines):]
		c.failures = append(c.failures, fmt.Sprintf("%s %s\n%s", e.Package, e.Test, strings.Join(said, "")))
	}
	if r.each {
		fmt.Fprintf(r.out, "  %-4s  %7.1f s  %s\n", e.Action, e.Elapsed, e.Test)
	}
}

func (r *run) packageEnd(e event) {
	c := r.packages[e.Package]
	if c == nil {
		c = &counts{}
	}
	r.total.add(*c)
	word := map[string]string{"pass": "ok", "skip": "-", "fail": "FAIL"}[e.Action]
	if e.Action == "fail" {
		r.hung(e.Package)
		fmt.Fprint(r.out, strings.Join(r.output[e.Package+" "], ""))
	}
	if e.Action != "skip" { // a package without tests
		fmt.Fprintf(r.out, "%-5s %-55s %s (%.1f s)\n", word, e.Package, c, e.Elapsed)
	}
}

// hung prints the output of tests that have not ended.
func (r *run) hung(pkg string) {
	for key, lines := range r.output {
		if p, test, _ := strings.Cut(key, " "); p == pkg && test != "" {
			fmt.Fprintf(r.out, "---- %s did not end:\n%s", key, strings.Join(lines, ""))
		}
	}
}
