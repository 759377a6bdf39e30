package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// peer is one runtime of the comparison.
type peer struct {
	name   string
	how    string // how the peer makes a child; a note under the tables
	absent string // reason why the peer takes no part; empty if it does
	pool   bool   // its processes can wait for a request
	driven bool   // this program starts the children, once for each of widths; otherwise the peer does
	// fork forks c.n children times times, one fork after another, and lets c measure each fork.
	fork func(ctx context.Context, c *cell, times int) error
}

// newPeer returns the peer whose program is at bin, and the first line of its version output. If
// bin is empty, the peer is absent.
func newPeer(ctx context.Context, name, bin string, pool bool) (p *peer, version string, err error) {
	p = &peer{name: name, pool: pool, driven: true}
	if bin == "" {
		p.absent = "it is not installed, and no path was given"
		return p, "", nil
	}
	out, err := exec.CommandContext(ctx, bin, "--version").Output()
	if err != nil {
		return nil, "", fmt.Errorf("%s --version: %w", bin, err)
	}
	version, _, _ = strings.Cut(string(out), "\n")
	return p, version, nil
}

// process is one child of a peer, from the start of its process. It is for peers whose children
// this program starts.
type process interface {
	start(ctx context.Context) error  // starts the guest; returns when the peer reports that it runs
	answer(ctx context.Context) error // returns when the guest has answered
	end()                             // ends the child and leaves nothing behind
	describe(c *child)                // fills in everything except times
}

// processes returns a fork function for a peer whose children are processes made by spawn. Without
// a pool, the work of spawn is part of the request. tells reports that start returns when the vCPUs
// have entered.
func processes(spawn func(ctx context.Context) (process, error), tells bool) func(context.Context, *cell, int) error {
	return func(ctx context.Context, c *cell, times int) error {
		for range times {
			if err := forkProcesses(ctx, c, spawn, tells); err != nil {
				return err
			}
		}
		return nil
	}
}

// widths are the numbers of children that a driver starts concurrently. The best number depends on
// whether a start computes or sleeps, so each peer is measured with all of them, and the tables
// show the best one.
var widths = []int{4, 16, 64}

// widthsFor returns the widths that make a difference for n children.
func widthsFor(n int) []int {
	for i, w := range widths {
		if w >= n {
			return widths[:i+1]
		}
	}
	return widths
}

// answerLimit is how long a fork may take before it counts as hanging. A hundred Linux guests on
// one emulated CPU take half a minute.
const answerLimit = 3 * time.Minute

func forkProcesses(ctx context.Context, c *cell, spawn func(context.Context) (process, error), tells bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, answerLimit, errors.New("its children do not answer"))
	defer cancel()
	all, children := make([]process, c.n), make([]child, c.n)
	defer func() {
		_ = inTurn(c.n, c.width, func(i int) error {
			if all[i] != nil {
				all[i].end()
			}
			return nil
		})
	}()
	// If make1 fails, it leaves all[i] nil.
	make1 := func(i int) error {
		p, err := spawn(ctx)
		if err == nil {
			all[i] = p
		}
		return err
	}
	if c.warm {
		if err := inTurn(c.n, c.width, make1); err != nil {
			return err
		}
	}
	if err := c.begin(); err != nil {
		return err
	}
	request := time.Now()
	answers := make([]error, c.n)
	var waiting sync.WaitGroup
	err := inTurn(c.n, c.width, func(i int) error {
		if !c.warm {
			if err := make1(i); err != nil {
				return err
			}
		}
		if err := all[i].start(ctx); err != nil {
			return err
		}
		if tells {
			children[i].entered = time.Since(request)
		}
		waiting.Go(func() {
			answers[i] = all[i].answer(ctx)
			children[i].answered = time.Since(request)
		})
		return nil
	})
	waiting.Wait()
	if err := errors.Join(append(answers, err)...); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	for i := range children {
		all[i].describe(&children[i])
	}
	return c.end(children)
}

// inTurn calls f with 0 to n-1, up to width calls at a time.
func inTurn(n, width int, f func(i int) error) error {
	places := make(chan struct{}, width)
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			errs[i] = f(i)
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// noPrivate replaces the private memory of children without a VMM.
func noPrivate() (float64, error) { return math.NaN(), nil }
