package main

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// pathPool is the number of waiting VMMs while the paths are compared. It suffices for ratesAtOnce.
const pathPool = 16

// ratesAtOnce has numbers of concurrent loops. For each number, the rate is measured for rateTime.
var ratesAtOnce = []int{1, 4, 16}

const rateTime = 5 * time.Second

// path is an interface through which programs fork one child and delete it.
type path struct {
	name string
	fork func(context.Context) (id string, err error)
	kill func(ctx context.Context, id string) error

	forks, kills []time.Duration // durations of single requests
	rates        []rate
}

// rate is the throughput of several concurrent loops that fork and delete.
type rate struct {
	loops       int
	took        time.Duration
	done        int
	fork, kills []time.Duration
}

// measurePaths compares a call of the manager with a request to the REST API. It also measures how
// long the deletion of a sandbox takes and how many sandboxes per second are possible.
func (b *bench) measurePaths(ctx context.Context) (paths []*path, err error) {
	err = b.withManager(pathPool, func(m *lab.Manager) error {
		var undo cleanup.Stack
		defer undo.Run()
		c, err := m.Serve(ctx, &undo)
		if err != nil {
			return err
		}
		paths = []*path{managerPath(m), restPath(c)}
		if _, _, err := paths[0].times(ctx); err != nil { // fills the page cache and lets the pool fill itself
			return err
		}
		for range b.opt.samples {
			for _, p := range paths {
				if err := m.WaitPool(ctx, 1); err != nil {
					return err
				}
				fork, kill, err := p.times(ctx)
				if err != nil {
					return err
				}
				p.forks, p.kills = append(p.forks, fork), append(p.kills, kill)
			}
		}
		for _, loops := range ratesAtOnce {
			for _, p := range paths {
				if b.TimeIsUp() {
					b.Progress("the time of -budget is up: %d loops stay blank", loops)
					return nil
				}
				b.Progress("%s: %d loops of fork and delete", p.name, loops)
				if err := m.WaitPool(ctx, pathPool); err != nil {
					return err
				}
				if err := p.measureRate(ctx, loops); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return paths, err
}

func managerPath(m *lab.Manager) *path {
	return &path{name: "call of the manager",
		fork: func(ctx context.Context) (string, error) {
			r, err := m.Fork(ctx, sandbox.ForkRequest{Tag: tag, N: 1})
			if err != nil {
				return "", err
			}
			return r.Sandboxes[0].ID, nil
		},
		kill: func(_ context.Context, id string) error { return m.Kill(id) },
	}
}

func restPath(c *client.Client) *path {
	return &path{name: "REST, unix socket",
		fork: func(ctx context.Context) (string, error) {
			r, err := c.Fork(ctx, client.ForkRequest{SnapshotTag: tag, N: 1})
			if err != nil {
				return "", err
			}
			return r.Sandboxes[0].ID, nil
		},
		kill: c.Kill,
	}
}

// times(ctx) forks and deletes one sandbox. It returns the time of the fork and the time of the
// deletion.
func (p *path) times(ctx context.Context) (fork, kill time.Duration, err error) {
	begin := time.Now()
	id, err := p.fork(ctx)
	if err != nil {
		return 0, 0, err
	}
	forked := time.Now()
	err = p.kill(ctx, id)
	return forked.Sub(begin), time.Since(forked), err
}

// measureRate runs several loops for rateTime. Each loop forks and deletes sandboxes. measureRate
// counts the sandboxes that were deleted within that time.
func (p *path) measureRate(ctx context.Context, loops int) error {
	forks, kills := make([][]time.Duration, loops), make([][]time.Duration, loops)
	var group errgroup.Group
	begin := time.Now()
	for i := range loops {
		group.Go(func() error {
			for {
				fork, kill, err := p.times(ctx)
				if err != nil || time.Since(begin) > rateTime {
					return err
				}
				forks[i], kills[i] = append(forks[i], fork), append(kills[i], kill)
			}
		})
	}
	err := group.Wait()
	r := rate{loops: loops, took: rateTime, fork: slices.Concat(forks...), kills: slices.Concat(kills...)}
	r.done = len(r.fork)
	p.rates = append(p.rates, r)
	return err
}

// pathsTable describes the paths.
func (b *bench) pathsTable(paths []*path) *report.Table {
	t := &report.Table{Title: "From the request to the answer, and the end of a sandbox; guest " + b.guest.name,
		Columns: []report.Column{{Name: "path"}, {Name: "loops"}, {Name: "sandboxes"},
			{Name: "fork p50 ms", Digits: 2}, {Name: "fork p99 ms", Digits: 2},
			{Name: "delete p50 ms", Digits: 2}, {Name: "delete p99 ms", Digits: 2}, {Name: "sandboxes/s", Digits: 1}}}
	for _, p := range paths {
		t.Add(p.name, "none", len(p.forks), quantile(p.forks, 0.5), quantile(p.forks, 0.99),
			quantile(p.kills, 0.5), quantile(p.kills, 0.99), nil)
		for _, r := range p.rates {
			t.Add(p.name, r.loops, r.done, quantile(r.fork, 0.5), quantile(r.fork, 0.99),
				quantile(r.kills, 0.5), quantile(r.kills, 0.99), report.Cell(float64(r.done)/r.took.Seconds()))
		}
	}
	t.Notef("loops: none: one sandbox is forked, of one child, and deleted when the pool has a ready VMM; otherwise " +
		"this many loops fork and delete concurrently for 5 s, while the pool of 16 is refilled")
	t.Notef("a delete ends when the VMM is killed and the sandbox's files are gone; the kernel ends up to 64 VMMs meanwhile")
	t.Notef("REST has JSON, the audit log and metrics; client and server are in one process")
	return t
}
