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
	how    string // how the peer makes a child; printed below the tables
	absent string // reason why the peer is not measured; empty if it is measured
	pool   bool   // processes of the peer can wait for a request
	driven bool   // this program starts the children, with each number in widths; false: the peer starts them itself
	// fork makes several forks of c.n children, one after another, and adds their figures to c.
	fork func(ctx context.Context, c *cell, times int) error
}

// newPeer returns a peer, and the version of the peer's program bin. The version is the first line
// that the program prints about its version. If bin is empty, the peer is absent.
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

// process is one child of a peer whose children this program starts.
type process interface {
	start(ctx context.Context) error  // starts the guest; returns when the peer says that it runs
	answer(ctx context.Context) error // returns when the guest has answered
	end()                             // ends the child and removes everything that belongs to it
	describe(c *child)                // sets all fields except times
}

// processes returns the fork function of a peer whose children are processes that spawn(ctx) makes.
// Without a pool, spawn is called as part of the request. If tells is true, process.start returns
// when the vCPUs run.
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

// widths are the numbers of children that this program starts concurrently. Which number is best
// depends on whether a start computes or sleeps. So each peer is measured with all widths, and the
// tables show the best result.
var widths = []int{4, 16, 64}

// widthsFor returns the widths to measure with n children: the widths below n, and the first width
// that is at least n. A larger width would start the same n children at once.
func widthsFor(n int) []int {
	for i, w := range widths {
		if w >= n {
			return widths[:i+1]
		}
	}
	return widths
}

// answerLimit is the time after which a fork counts as hanging. A hundred Linux guests on one
// emulated CPU take half a minute.
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
	// make1 makes process i. If it fails, it leaves all[i] nil.
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

// inTurn calls f with each number from 0 to n-1. At most width calls of f run at the same time.
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

// noPrivate is child.private for children without a VMM. It returns NaN.
func noPrivate() (float64, error) { return math.NaN(), nil }
