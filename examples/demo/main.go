// Command demo forks many children of one warm parent and lets each child compute something
// different. It checks every answer and prints how long everything took.
//
// If no daemon is running, the demo starts one (in the emulated host if KVM is not usable). If the
// recipe python-numpy was not built and baked before, the demo builds and bakes it. Then it forks
// children, lets one child fetch from an allowed server and from a forbidden server, and branches
// another child. The demo removes its children at the end. The daemon and the emulated host
// continue to run. If not all answers are right, the exit code is 1.
//
// The demo uses sandboxes only through package client. The program forkd must be in the PATH.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/forkd/forkd/client"
)

func main() {
	var address, save, output string
	d := &demo{progress: os.Stderr}
	flag.IntVar(&d.n, "n", 100, "how many children, 1 to 1000")
	flag.IntVar(&d.n, "count", 100, "the same as -n")
	flag.StringVar(&save, "save", "", "also write the figures to this file, as JSON")
	flag.StringVar(&address, "daemon-url", os.Getenv("FORKD_URL"), "use this daemon and start nothing; default $FORKD_URL")
	flag.StringVar(&output, "o", "text", "text or json")
	flag.Parse()
	if flag.NArg() > 0 || output != "text" && output != "json" || d.n < 1 || d.n > 1000 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	d.ctx = ctx
	if err := d.runAndReport(address, save, output == "json"); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

func (d *demo) runAndReport(address, save string, asJSON bool) (err error) {
	if d.program, err = exec.LookPath("forkd"); err != nil {
		return err
	}
	d.shown = d.program
	if dir, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(dir, d.program); err == nil && filepath.IsLocal(rel) {
			d.shown = rel
		}
	}
	defer d.cleanUp()
	err = d.run(address)
	if err == nil && asJSON {
		err = writeJSON(os.Stdout, d.figures)
	} else if err == nil {
		err = d.report(os.Stdout)
	}
	if err == nil && save != "" {
		err = saveFigures(save, d.figures)
	}
	switch {
	case err != nil:
		return err
	case d.figures.Correct != d.n:
		return fmt.Errorf("%d of %d answers are right", d.figures.Correct, d.n)
	case !d.figures.Network.complete():
		return errors.New("the network of a child is not what its policy says")
	case !d.figures.Branch.complete():
		return errors.New("not all children of the branch are right")
	}
	return nil
}

// demo is one run.
type demo struct {
	ctx      context.Context
	n        int
	progress io.Writer

	program   string // path of forkd
	shown     string // name of program as the user would type it
	client    *client.Client
	where     host
	tag       string
	forked    client.Forked
	branched  []client.Sandbox // children that were forked from the branch
	branchTag string           // tag of the branch
	figures   figures
	wrong     []string // the first answers that were wrong
	stages    []stage
}

// stage is a finished step of the demo.
type stage struct {
	name, detail string
	took         time.Duration
}

// step runs one stage and records how long it took.
func (d *demo) step(name string, f func() (detail string, err error)) error {
	fmt.Fprintf(d.progress, "forkd: %s\n", name)
	start := time.Now()
	detail, err := f()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	d.done(stage{name, detail, time.Since(start)})
	return nil
}

func (d *demo) done(s stage) {
	d.stages = append(d.stages, s)
	fmt.Fprintf(d.progress, "%8.1f s  %s: %s\n", s.took.Seconds(), s.name, s.detail)
}

func (d *demo) run(address string) error {
	err := d.step("start the host", func() (string, error) { return d.startHost(address) })
	if err != nil {
		return err
	}
	if err := d.buildParent(); err != nil {
		return err
	}
	for _, s := range []struct {
		name string
		f    func() (string, error)
	}{
		{fmt.Sprintf("fork %d children", d.n), d.fork},
		{"measure their memory", d.measureMemory},
		{"evaluate a different numpy expression in each", d.evaluate},
		{"compare warm eval and cold exec", d.compare},
		{"let a child fetch what its policy allows", d.network},
		{"branch a child while it computes", d.branch},
	} {
		if err := d.step(s.name, s.f); err != nil {
			return err
		}
	}
	return nil
}

// ttl is the lifetime of the children. After that time the children end even if the demo cannot
// remove them.
const ttl = 30 * time.Minute

func (d *demo) fork() (string, error) {
	var err error
	// Accept a partial result, because the report says how many children did not start.
	d.forked, err = d.client.Fork(d.ctx, client.ForkRequest{
		SnapshotTag: d.tag, N: d.n, HostnamePrefix: "demo", AllowPartial: true, TTLSecs: ttl.Seconds(),
	})
	if err != nil {
		return "", err
	}
	d.figures.Children, d.figures.Confirmed = d.n, len(d.forked.Sandboxes)
	d.figures.VMMWallMS, d.figures.ForkWallMS = d.forked.VMMWallMS, d.forked.ForkWallMS
	var ready []float64
	for _, s := range d.forked.Sandboxes {
		if s.ReadyMS != nil {
			ready = append(ready, *s.ReadyMS)
		}
	}
	d.figures.ChildP50MS, d.figures.ChildP99MS = percentile(ready, 50), percentile(ready, 99)
	return fmt.Sprintf("%d confirmed", len(d.forked.Sandboxes)), nil
}

// timeout bounds the time of code in a child, in seconds. Importing numpy takes half a minute on an
// overloaded emulated host.
const timeout = 120

// calls is the number of concurrent calls to children.
const calls = 8

// each(f) calls f for every child. The limit on concurrent calls of f is the constant calls.
func (d *demo) each(f func(i int, id string) error) error {
	var group sync.WaitGroup
	errs := make([]error, len(d.forked.Sandboxes))
	slots := make(chan struct{}, calls)
	for i, s := range d.forked.Sandboxes {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			errs[i] = f(i, s.ID)
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func (d *demo) measureMemory() (string, error) {
	stats := make([]client.Stats, len(d.forked.Sandboxes))
	err := d.each(func(i int, id string) (err error) {
		stats[i], err = d.client.Stats(d.ctx, id)
		return err
	})
	if err != nil {
		return "", err
	}
	d.figures.setMemory(stats)
	return fmt.Sprintf("%d KiB Pss per child", d.figures.PSSKiB), nil
}

func (d *demo) evaluate() (string, error) {
	var mu sync.Mutex
	err := d.each(func(i int, id string) error {
		s := sumOf(i)
		r, err := d.client.Eval(d.ctx, id, client.EvalRequest{Code: s.code, TimeoutSecs: timeout})
		if d.ctx.Err() != nil {
			return d.ctx.Err()
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil:
			d.wrong = append(d.wrong, fmt.Sprintf("%s: %s: %v", id, s.code, err))
		case r.Error != "" || r.Result == nil:
			d.wrong = append(d.wrong, fmt.Sprintf("%s: %s: %s %s", id, s.code, r.Error, r.Traceback))
		case *r.Result != s.want:
			d.wrong = append(d.wrong, fmt.Sprintf("%s: %s = %s, want %s", id, s.code, *r.Result, s.want))
		default:
			d.figures.Correct++
		}
		return nil
	})
	return fmt.Sprintf("%d of %d answers are right", d.figures.Correct, d.n), err
}

// runs is how many times each of the two ways to run Python is timed. The median is reported.
const runs = 3

// compare measures how long an evaluation takes in the warm interpreter, and in a new Python
// process that imports numpy. It measures both in the same few children, one child at a time.
func (d *demo) compare() (string, error) {
	const code = "np.arange(16.0).sum()"
	var warm, cold []float64
	for _, s := range d.forked.Sandboxes[:min(runs, len(d.forked.Sandboxes))] {
		start := time.Now()
		if _, err := d.client.Eval(d.ctx, s.ID, client.EvalRequest{Code: "float(" + code + ")"}); err != nil {
			return "", err
		}
		warm = append(warm, msSince(start))
		start = time.Now()
		r, err := d.client.Exec(d.ctx, s.ID, client.ExecRequest{
			Args: []string{"python3", "-c", "import numpy as np; print(" + code + ")"}, TimeoutSecs: timeout,
		})
		if err == nil && r.ExitCode != 0 {
			err = fmt.Errorf("python3: %s %s", r.Error, r.Stderr)
		}
		if err != nil {
			return "", err
		}
		cold = append(cold, msSince(start))
	}
	d.figures.EvalWarmMS, d.figures.ExecColdMS = percentile(warm, 50), percentile(cold, 50)
	return fmt.Sprintf("%.1f ms against %.1f ms", d.figures.EvalWarmMS, d.figures.ExecColdMS), nil
}

// cleanUpTime bounds the time for removing the children. The demo removes them even after an
// interrupt.
const cleanUpTime = 2 * time.Minute

func (d *demo) cleanUp() {
	if d.client == nil {
		return
	}
	defer d.client.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), cleanUpTime)
	defer cancel()
	for _, s := range append(d.branched, d.forked.Sandboxes...) {
		if err := d.client.Kill(ctx, s.ID); err != nil && !client.IsNotFound(err) {
			fmt.Fprintf(d.progress, "forkd: remove %s: %v\n", s.ID, err)
		}
	}
	if d.branchTag == "" {
		return
	}
	if err := d.client.DeleteSnapshot(ctx, d.branchTag, client.DeleteOptions{}); err != nil {
		fmt.Fprintf(d.progress, "forkd: remove snapshot %s: %v\n", d.branchTag, err)
	}
}

func msSince(start time.Time) float64 { return float64(time.Since(start).Microseconds()) / 1000 }

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func saveFigures(path string, f figures) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("save the figures: %w", err)
	}
	w, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("save the figures: %w", err)
	}
	return errors.Join(writeJSON(w, f), w.Close())
}
