package main

import (
	"context"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// cell is one combination of parameters, and the times of its forks.
type cell struct {
	n                  int
	poolWarm, coldPage bool

	runs                     int
	vmm, ready               []time.Duration // for each child: time since the request
	vmmWall, readyWall       []time.Duration // for each fork: time of its last child
	mapped, restored, resume []time.Duration // for each child: parts of the VMM's work
	pooled                   int             // number of children whose VMM was waiting in the pool
	cpu                      []time.Duration // for each fork: CPU time of this process and all VMMs
	memory                   *memory         // memory of the children of the first fork, while they were alive
}

func (c *cell) pool() string { return word(c.poolWarm, "warm", "cold") }
func (c *cell) page() string { return word(c.coldPage, "cold", "warm") }

func word(b bool, yes, no string) string {
	if b {
		return yes
	}
	return no
}

// run(…) makes forks until the cell has enough children or the time is up, but at least one fork.
// Before that, it makes one fork that is not measured. That fork fills the page cache and lets the
// pool fill itself.
func (c *cell) run(ctx context.Context, m *lab.Manager, samples int, until time.Time, measureMemory bool) error {
	if _, err := m.Fork(ctx, sandbox.ForkRequest{Tag: tag, N: 1}); err != nil {
		return err
	}
	m.KillAll()
	for len(c.vmm) == 0 || len(c.vmm) < samples && time.Now().Before(until) {
		if err := c.fork(ctx, m, measureMemory && c.memory == nil); err != nil {
			return err
		}
		m.KillAll()
	}
	return nil
}

// fork forks once and measures the children. It does not kill the children.
func (c *cell) fork(ctx context.Context, m *lab.Manager, measureMemory bool) error {
	if c.poolWarm {
		if err := m.WaitPool(ctx, c.n); err != nil {
			return err
		}
	}
	if c.coldPage {
		if err := lab.DropCaches(); err != nil {
			return err
		}
	}
	host, err := lab.ReadHostMemory()
	if err != nil {
		return err
	}
	before, err := lab.ReadCPU()
	if err != nil {
		return err
	}
	result, err := m.Fork(ctx, sandbox.ForkRequest{Tag: tag, N: c.n})
	if err != nil {
		return err
	}
	after, err := lab.ReadCPU()
	if err != nil {
		return err
	}
	var pids []int
	for _, s := range result.Sandboxes {
		pids = append(pids, s.PID)
	}
	own, vmms := after.Since(before, pids)
	c.add(result, own+vmms)
	if measureMemory {
		c.memory, err = memoryOf(ctx, m, result.Sandboxes, host)
	}
	return err
}

func (c *cell) add(r sandbox.ForkResult, cpu time.Duration) {
	c.runs++
	c.vmmWall, c.readyWall = append(c.vmmWall, r.VMMWall), append(c.readyWall, r.ForkWall)
	c.cpu = append(c.cpu, cpu)
	for _, s := range r.Sandboxes {
		t := s.Timing
		c.vmm, c.ready = append(c.vmm, t.VMM), append(c.ready, t.Ready)
		c.mapped = append(c.mapped, t.Restore.Map)
		c.restored = append(c.restored, t.Restore.State)
		c.resume = append(c.resume, t.Restore.Run)
		if t.Pooled {
			c.pooled++
		}
	}
}
