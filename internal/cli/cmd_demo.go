package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/build/image"
)

type demoOptions struct {
	url    string
	output string
	save   string
	n      int
}

func newDemoCmd() *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Fork many children of one warm parent, let each compute something else, check and measure",
		Long: "Starts what is missing (the emulated host where KVM is not usable, the daemon), builds and bakes the recipe\n" +
			"python-numpy unless that was done before, forks children, checks an answer of each, lets one fetch from a server\n" +
			"that its policy allows and from one that it does not, branches another, and prints what everything took. It\n" +
			"removes its children; the emulated host and the daemon stay. Exits with 1 unless all answers are right.",
		Args: usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(o.output); err != nil {
				return err
			}
			ctx, cancel := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer cancel()
			return runDemo(ctx, cmd, o)
		},
	}
	f := cmd.Flags()
	f.IntVarP(&o.n, "count", "n", 100, "how many children, 1 to 1000")
	f.StringVar(&o.save, "save", "", "also write the figures to this file, as JSON")
	f.StringVar(&o.url, "daemon-url", os.Getenv(urlEnv), "use this daemon and start nothing; default $"+urlEnv)
	f.StringVarP(&o.output, "output", "o", "text", "text or json")
	return cmd
}

func runDemo(ctx context.Context, cmd *cobra.Command, o demoOptions) error {
	d := &demo{ctx: ctx, n: o.n, progress: cmd.ErrOrStderr()}
	defer d.cleanUp()
	err := d.run(o.url)
	if err == nil && o.output == "json" {
		err = writeJSON(cmd.OutOrStdout(), d.figures)
	} else if err == nil {
		err = d.report(cmd.OutOrStdout())
	}
	if err == nil && o.save != "" {
		err = saveFigures(o.save, d.figures)
	}
	if err == nil && d.figures.Correct != o.n {
		return fmt.Errorf("%d of %d answers are right", d.figures.Correct, o.n)
	}
	if err == nil && !d.figures.Network.complete() {
		return errors.New("the network of a child is not what its policy says")
	}
	if err == nil && !d.figures.Branch.complete() {
		return errors.New("not all children of the branch are right")
	}
	return err
}

// demo is one run.
type demo struct {
	ctx      context.Context
	n        int
	progress io.Writer

	client    *client.Client
	where     demoHost
	recipe    *image.Recipe
	image     *image.Image
	kernel    *image.KernelFiles
	tag       string
	forked    client.Forked
	branched  []client.Sandbox // children of the branch
	branchTag string           // its snapshot
	figures   figures
	wrong     []string // the first answers that were not right
	stages    []stage
}

// stage is a step of the demo that is done.
type stage struct {
	name, detail string
	took         time.Duration
}

// step runs one stage and remembers how long it took.
func (d *demo) step(name string, f func(st *status) (detail string, err error)) error {
	st := newStatus(d.progress)
	st.step(name, "")
	start := time.Now()
	detail, err := f(st)
	st.end()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	s := stage{name, detail, time.Since(start)}
	d.stages = append(d.stages, s)
	fmt.Fprintf(d.progress, "%8.1f s  %s: %s\n", s.took.Seconds(), s.name, s.detail)
	return nil
}

func (d *demo) run(url string) error {
	steps := []struct {
		name string
		f    func(*status) (string, error)
	}{
		{"start the host", func(st *status) (string, error) { return d.startHost(url, st) }},
		{"build the image", d.buildImage},
		{"bake the parent", d.bake},
		{fmt.Sprintf("fork %d children", d.n), d.fork},
		{"measure their memory", d.measureMemory},
		{"evaluate a different numpy expression in each", d.evaluate},
		{"compare warm eval and cold exec", d.compare},
		{"let a child fetch what its policy allows", d.network},
		{"branch a child while it computes", d.branch},
	}
	for _, s := range steps {
		if err := d.step(s.name, s.f); err != nil {
			return err
		}
	}
	return nil
}

// demoTTL removes the children of a demo that could not clean up.
const demoTTL = 30 * time.Minute

func (d *demo) fork(*status) (string, error) {
	var err error
	// Partial results, because the report is to say how many of them did not start.
	d.forked, err = d.client.Fork(d.ctx, client.ForkRequest{
		SnapshotTag: d.tag, N: d.n, HostnamePrefix: "demo", AllowPartial: true, TTLSecs: demoTTL.Seconds(),
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

// demoTimeout bounds what runs in a child, in seconds. On an overloaded emulated host importing
// numpy takes half a minute.
const demoTimeout = 120

// demoCalls is how many children are asked at once.
const demoCalls = 8

// each calls f for every child, several at once, and reports progress.
func (d *demo) each(st *status, name string, f func(i int, id string) error) error {
	var group sync.WaitGroup
	var done atomic.Int64
	errs := make([]error, len(d.forked.Sandboxes))
	slots := make(chan struct{}, demoCalls)
	for i, s := range d.forked.Sandboxes {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			errs[i] = f(i, s.ID)
			st.step(name, fmt.Sprintf("%d of %d", done.Add(1), len(errs)))
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func (d *demo) measureMemory(st *status) (string, error) {
	stats := make([]client.Stats, len(d.forked.Sandboxes))
	err := d.each(st, "measure their memory", func(i int, id string) (err error) {
		stats[i], err = d.client.Stats(d.ctx, id)
		return err
	})
	if err != nil {
		return "", err
	}
	d.figures.setMemory(stats)
	return fmt.Sprintf("%d KiB Pss per child", d.figures.PSSKiB), nil
}

func (d *demo) evaluate(st *status) (string, error) {
	var mu sync.Mutex
	err := d.each(st, "evaluate a different numpy expression in each", func(i int, id string) error {
		s := demoSum(i)
		r, err := d.client.Eval(d.ctx, id, client.EvalRequest{Code: s.code, TimeoutSecs: demoTimeout})
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

// demoRuns is how often the two ways to run Python are timed; the median counts.
const demoRuns = 3

// compare times an evaluation in the warm interpreter and a Python that starts and imports numpy,
// each in children of its own, one at a time.
func (d *demo) compare(*status) (string, error) {
	const code = "np.arange(16.0).sum()"
	var warm, cold []float64
	for _, s := range d.forked.Sandboxes[:min(demoRuns, len(d.forked.Sandboxes))] {
		start := time.Now()
		if _, err := d.client.Eval(d.ctx, s.ID, client.EvalRequest{Code: "float(" + code + ")"}); err != nil {
			return "", err
		}
		warm = append(warm, msSince(start))
		start = time.Now()
		r, err := d.client.Exec(d.ctx, s.ID, client.ExecRequest{
			Args: []string{"python3", "-c", "import numpy as np; print(" + code + ")"}, TimeoutSecs: demoTimeout,
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

// cleanUpTime bounds the removal of the children, also after an interrupt.
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
