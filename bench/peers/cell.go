package main

import (
	"math"
	"runtime"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
)

// cell holds the figures of one peer's forks with one n, with a pool or without.
type cell struct {
	n     int
	warm  bool // processes waited in the pool
	width int  // how many children the driver starts at a time; 0: the peer decides

	entered, answered []float64     // milliseconds per child, since the request
	last              []float64     // milliseconds per fork: answer of its last child
	vmm, driver       time.Duration // CPU time of all timed children, and of this process for them
	timed             int           // number of timed children
	counts            []lab.Counts  // per counted child, since the request
	private           []float64     // KiB, per counted child, without guest RAM

	counter *lab.Counter // if set, forks are counted and not timed
	before  map[int]lab.Counts
	cpu     lab.CPU
}

// child is one live child of a fork. All times are measured from the request.
type child struct {
	pid      int           // of its VMM process; 0: there is none to measure
	entered  time.Duration // when its vCPUs ran; 0: the peer does not report it
	answered time.Duration
	private  func() (float64, error) // see cell.private
}

// quietTime is the pause before a request. It is also the time after the last answer in which
// remaining work of a fork still counts as its cost.
const quietTime = 100 * time.Millisecond

// begin is called when everything is ready for a request.
func (c *cell) begin() (err error) {
	runtime.GC() // or a collection of ReadCPU's garbage might run in the middle of a fork
	time.Sleep(quietTime)
	if c.counter != nil {
		if c.before, err = c.counter.ReadChildren(); err != nil {
			return err
		}
	}
	c.cpu, err = lab.ReadCPU()
	return err
}

// end is called when the last child has answered, while all children are alive.
func (c *cell) end(children []child) error {
	now, err := lab.ReadCPU()
	if err != nil {
		return err
	}
	time.Sleep(quietTime)
	if c.counter != nil {
		return c.count(children)
	}
	later, err := lab.ReadCPU()
	if err != nil {
		return err
	}
	own, _ := now.Since(c.cpu, nil)
	var last time.Duration
	for _, child := range children {
		_, vmm := later.Since(c.cpu, []int{child.pid})
		c.vmm += vmm
		c.entered = append(c.entered, report.Millis(child.entered)...)
		c.answered = append(c.answered, report.Millis(child.answered)...)
		last = max(last, child.answered)
	}
	c.driver += own
	c.last = append(c.last, report.Millis(last)...)
	c.timed += len(children)
	return nil
}

func (c *cell) count(children []child) error {
	for _, child := range children {
		if child.pid == 0 {
			continue
		}
		now, err := c.counter.Read(child.pid)
		if err != nil {
			return err
		}
		c.counts = append(c.counts, now.Sub(c.before[child.pid]))
		private, err := child.private()
		if err != nil {
			return err
		}
		c.private = append(c.private, private)
	}
	return nil
}

// p50Entered returns the median time until the vCPUs run, or NaN if the peer does not report it.
func (c *cell) p50Entered() float64 {
	if len(c.entered) == 0 || c.entered[0] == 0 {
		return math.NaN()
	}
	return report.Quantile(c.entered, 0.5)
}

func (c *cell) p50Answered() float64 { return report.Quantile(c.answered, 0.5) }

func (c *cell) p50Last() float64 { return report.Quantile(c.last, 0.5) }

// vmmCPU returns milliseconds per child, or NaN if unknown.
func (c *cell) vmmCPU() float64 {
	if c.timed == 0 || c.vmm == 0 {
		return math.NaN()
	}
	return c.vmm.Seconds() * 1e3 / float64(c.timed)
}

// driverCPU returns milliseconds per child.
func (c *cell) driverCPU() float64 {
	if c.timed == 0 {
		return math.NaN()
	}
	return c.driver.Seconds() * 1e3 / float64(c.timed)
}

// p50Count returns the median of a count, or NaN if nothing was counted.
func (c *cell) p50Count(figure func(lab.Counts) uint64) float64 {
	var all []float64
	for _, counts := range c.counts {
		all = append(all, float64(figure(counts)))
	}
	return report.Quantile(all, 0.5)
}

// exits returns the median number of VM exits of a child, or nil if it is unknown: kvm-pvm has no
// tracepoint for exits.
func (c *cell) exits() any {
	if v := c.p50Count(func(c lab.Counts) uint64 { return c.Exits }); v > 0 {
		return report.Cell(v)
	}
	return nil
}
