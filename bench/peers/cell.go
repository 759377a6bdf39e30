package main

import (
	"math"
	"runtime"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
)

// cell holds the figures of the forks of one peer at one n, from a pool or without one.
type cell struct {
	n     int
	warm  bool // processes were waiting in the pool
	width int  // children that the driver starts at a time; 0: the peer decides

	entered, answered []float64     // ms, per child, from the request
	last              []float64     // ms, per fork: its last child answered
	vmm, driver       time.Duration // CPU time of all timed children, and of this process for them
	timed             int           // children
	counts            []lab.Counts  // per counted child, from the request
	private           []float64     // KiB, per counted child, without guest RAM

	counter *lab.Counter // nil: forks are timed; otherwise they are counted and not timed
	before  map[int]lab.Counts
	cpu     lab.CPU
}

// child is one live child of a fork. All times are measured from the request.
type child struct {
	pid      int           // of its VMM process; 0: none that could be measured
	entered  time.Duration // its vCPUs run; 0: the peer does not report it
	answered time.Duration
	private  func() (float64, error) // see cell.private
}

// quietTime is the pause before a request, and the time after the last answer in which the work that a
// fork leaves behind counts as its cost.
const quietTime = 100 * time.Millisecond

// begin is called when everything is ready for a request.
func (c *cell) begin() (err error) {
	runtime.GC() // or what ReadCPU leaves behind might have it run in the middle of a fork
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

// p50Entered and p50Answered are NaN if the peer does not report the time.
func (c *cell) p50Entered() float64 {
	if len(c.entered) == 0 || c.entered[0] == 0 {
		return math.NaN()
	}
	return report.Quantile(c.entered, 0.5)
}

func (c *cell) p50Answered() float64 { return report.Quantile(c.answered, 0.5) }

func (c *cell) p50Last() float64 { return report.Quantile(c.last, 0.5) }

// vmmCPU is in ms per child; NaN if unknown.
func (c *cell) vmmCPU() float64 {
	if c.timed == 0 || c.vmm == 0 {
		return math.NaN()
	}
	return c.vmm.Seconds() * 1e3 / float64(c.timed)
}

// driverCPU is in ms per child.
func (c *cell) driverCPU() float64 {
	if c.timed == 0 {
		return math.NaN()
	}
	return c.driver.Seconds() * 1e3 / float64(c.timed)
}

// p50Count is the median of a count, NaN if nothing was counted.
func (c *cell) p50Count(figure func(lab.Counts) uint64) float64 {
	var all []float64
	for _, counts := range c.counts {
		all = append(all, float64(figure(counts)))
	}
	return report.Quantile(all, 0.5)
}

// exits is the median number of VM exits of a child, nil if it is unknown, because kvm-pvm has no
// tracepoint for them.
func (c *cell) exits() any {
	if v := c.p50Count(func(c lab.Counts) uint64 { return c.Exits }); v > 0 {
		return report.Cell(v)
	}
	return nil
}
