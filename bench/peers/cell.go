package main

import (
	"math"
	"runtime"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/vmtest/opcount"
)

// cell has the figures of one peer's forks of n children, with a pool or without one.
type cell struct {
	n     int
	warm  bool // processes were waiting in the pool
	width int  // number of children that this program starts concurrently; 0: the peer chooses the number

	entered, answered []float64        // milliseconds since the request, one value for each child
	last              []float64        // milliseconds until the last child's answer, one value for each fork
	vmm, driver       time.Duration    // CPU time of all timed children, and CPU time of this process for these children
	timed             int              // number of timed children
	counts            []opcount.Counts // operations since the request, one value for each counted child
	private           []float64        // KiB of private memory without guest RAM, one value for each counted child

	counter *opcount.Counter // if set, the operations of the forks are counted, and the forks are not timed
	before  map[int]opcount.Counts
	cpu     lab.CPU
}

// child is a running child of a fork. Times are measured from the request.
type child struct {
	pid      int           // process id of the VMM; 0: no process corresponds to the child
	entered  time.Duration // when the vCPUs ran; 0: the peer does not report it
	answered time.Duration
	private  func() (float64, error) // returns the value for cell.private
}

// quietTime is the pause before a request. The measurement of a fork continues for this time after the
// VMM's last answer, to include work that the VMM does after the answer.
const quietTime = 100 * time.Millisecond

// begin is called just before a request.
func (c *cell) begin() (err error) {
	runtime.GC() // without this, ReadCPU's garbage might be collected during a fork
	time.Sleep(quietTime)
	if c.counter != nil {
		if c.before, err = c.counter.ReadChildren(); err != nil {
			return err
		}
	}
	c.cpu, err = lab.ReadCPU()
	return err
}

// end is called when the last child has answered. All children are still alive.
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

// p50Entered returns the median time until the vCPUs ran. It returns NaN if the peer does not
// report this time.
func (c *cell) p50Entered() float64 {
	if len(c.entered) == 0 || c.entered[0] == 0 {
		return math.NaN()
	}
	return report.Quantile(c.entered, 0.5)
}

func (c *cell) p50Answered() float64 { return report.Quantile(c.answered, 0.5) }

func (c *cell) p50Last() float64 { return report.Quantile(c.last, 0.5) }

// vmmCPU returns the CPU time of a child in milliseconds; NaN if it is unknown.
func (c *cell) vmmCPU() float64 {
	if c.timed == 0 || c.vmm == 0 {
		return math.NaN()
	}
	return c.vmm.Seconds() * 1e3 / float64(c.timed)
}

// driverCPU returns the CPU time of this process for a child, in milliseconds.
func (c *cell) driverCPU() float64 {
	if c.timed == 0 {
		return math.NaN()
	}
	return c.driver.Seconds() * 1e3 / float64(c.timed)
}

// p50Count returns the median of a count over the children; NaN if nothing was counted.
func (c *cell) p50Count(figure func(opcount.Counts) uint64) float64 {
	var all []float64
	for _, counts := range c.counts {
		all = append(all, float64(figure(counts)))
	}
	return report.Quantile(all, 0.5)
}

// exits returns the median number of VM exits of a child. It returns nil on kvm-pvm, which has no
// tracepoint for exits.
func (c *cell) exits() any {
	if v := c.p50Count(func(c opcount.Counts) uint64 { return c.Exits }); v > 0 {
		return report.Cell(v)
	}
	return nil
}
