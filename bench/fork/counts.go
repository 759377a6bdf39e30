package main

import (
	"context"
	"os"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/host/procmem"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/vmtest/opcount"
)

// counts are the numbers of operations of forked children. Apart from chance, they are the same on
// every host. The CPU times depend on the host and are only for reference.
type counts struct {
	n        int
	poolWarm bool

	children          []child
	vmmCPU, daemonCPU time.Duration // CPU time for all children
}

type child struct {
	request, start opcount.Counts // operations since the request, and since the process was started
	dirtied        float64        // pages of guest memory that the child has written
	private        float64        // KiB, without guest memory
}

// p50 returns the median of a figure over the children. It is not a mean, because a mean would be
// wrong if a child has the process id of an earlier process. In this case, the operations of the
// earlier process are also counted.
func (c *counts) p50(figure func(child) float64) float64 {
	var all []float64
	for _, child := range c.children {
		all = append(all, figure(child))
	}
	return report.Quantile(all, 0.5)
}

// countSettle is the delay between the answer to a fork and the reading of the counts. Work that a
// fork does after the answer is part of the fork's cost.
const countSettle = 100 * time.Millisecond

// countedChildren is the minimum number of children that are counted for a row.
const countedChildren = 20

// countAll makes a row of counts for every n with a warm pool, and one row with a cold pool. It
// stops when the time of -budget is up.
func (b *bench) countAll(ctx context.Context) (rows []*counts, err error) {
	for _, n := range b.opt.ns.List {
		for _, warm := range []bool{true, false} {
			if b.TimeIsUp() {
				b.Progress("the time of -budget is up: counts of n=%d, pool %s stay blank", n, word(warm, "warm", "cold"))
				continue
			}
			b.Progress("counting: n=%d, pool %s", n, word(warm, "warm", "cold"))
			row, err := b.count(ctx, n, warm)
			if err != nil {
				return rows, err
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// count forks n children at a time while the kernel counts their operations.
func (b *bench) count(ctx context.Context, n int, poolWarm bool) (*counts, error) {
	counter, err := opcount.New()
	if err != nil {
		return nil, err
	}
	defer counter.Close()
	size := 0
	if poolWarm {
		size = n
	}
	c := &counts{n: n, poolWarm: poolWarm}
	err = b.withManager(size, func(m *lab.Manager) error {
		// This fork is not counted. It fills the page cache and lets the pool fill itself.
		if _, err := m.Fork(ctx, sandbox.ForkRequest{Tag: tag, N: 1}); err != nil {
			return err
		}
		for m.KillAll(); len(c.children) < countedChildren; m.KillAll() {
			if err := c.fork(ctx, m, counter); err != nil {
				return err
			}
		}
		return nil
	})
	return c, err
}

// fork forks once and counts the operations of the children. It does not kill the children.
func (c *counts) fork(ctx context.Context, m *lab.Manager, counter *opcount.Counter) error {
	if c.poolWarm {
		if err := m.WaitPool(ctx, c.n); err != nil {
			return err
		}
		time.Sleep(countSettle) // wait, because the work after the start of the VMMs does not belong to the request
	}
	before, err := counter.ReadChildren()
	if err != nil {
		return err
	}
	cpu, err := lab.ReadCPU()
	if err != nil {
		return err
	}
	result, err := m.Fork(ctx, sandbox.ForkRequest{Tag: tag, N: c.n})
	if err != nil {
		return err
	}
	now, err := lab.ReadCPU()
	if err != nil {
		return err
	}
	time.Sleep(countSettle)
	later, err := lab.ReadCPU()
	if err != nil {
		return err
	}
	var pids []int
	for _, s := range result.Sandboxes {
		pids = append(pids, s.PID)
	}
	own, _ := now.Since(cpu, nil)
	_, vmms := later.Since(cpu, pids)
	c.daemonCPU, c.vmmCPU = c.daemonCPU+own, c.vmmCPU+vmms
	for _, s := range result.Sandboxes {
		if err := c.add(ctx, m, counter, s, before[s.PID]); err != nil {
			return err
		}
	}
	return nil
}

func (c *counts) add(ctx context.Context, m *lab.Manager, counter *opcount.Counter, s sandbox.Info,
	before opcount.Counts) error {
	now, err := counter.Read(s.PID)
	if err != nil {
		return err
	}
	info, err := m.Snapshots().Detail(tag)
	if err != nil {
		return err
	}
	mem, err := procmem.Of(s.PID, info.Machine.MemoryBytes)
	if err != nil {
		return err
	}
	stats, err := m.Stats(ctx, s.ID)
	if err != nil {
		return err
	}
	c.children = append(c.children, child{
		request: now.Sub(before), start: now,
		dirtied: float64(stats.VMM.GuestDirtyBytes) / float64(os.Getpagesize()),
		private: float64(mem.TotalPrivate() - mem.Private[procmem.PartGuest]),
	})
	return nil
}

// Maximum cost of a child.
const (
	privateBudget = 512 // KiB, without guest RAM
	dirtiedBudget = 640 // KiB
)

// budget is the maximum cost of a child, with a warm pool or a cold pool.
type budget struct {
	switches, calls float64 // context switches and system calls since the request
	cpu             float64 // CPU time of the VMM, in milliseconds
}

func (c *counts) budget() budget {
	if c.poolWarm {
		return budget{switches: 30, calls: 75, cpu: 0.9}
	}
	return budget{switches: 70, calls: 475, cpu: 2.5}
}

// countsTable shows the cost of a child, and whether the cost is within the budget.
func countsTable(rows []*counts) *report.Table {
	t := &report.Table{Title: "Counts per child (p50)", Columns: []report.Column{
		{Name: "n"}, {Name: "pool"}, {Name: "context switches"},
		{Name: "system calls from the request"}, {Name: "from process start"},
		{Name: "KVM exits"}, {Name: "host page faults"}, {Name: "guest pages written"},
		{Name: "VMM CPU ms", Digits: 2}, {Name: "daemon CPU ms", Digits: 2}, {Name: "private KiB"}}}
	for _, c := range rows {
		millis := func(d time.Duration) float64 { return d.Seconds() * 1e3 / float64(len(c.children)) }
		switches := c.p50(func(c child) float64 { return float64(c.request.Switches) })
		private, dirtied := c.p50(func(c child) float64 { return c.private }), c.p50(func(c child) float64 {
			return c.dirtied
		})
		var exits any // unknown on kvm-pvm, which has no tracepoint for exits
		if v := c.p50(func(c child) float64 { return float64(c.request.Exits) }); v > 0 {
			exits = report.Cell(v)
		}
		pool := word(c.poolWarm, "warm", "cold")
		calls := c.p50(func(c child) float64 { return float64(c.request.Calls) })
		t.Add(c.n, pool, report.Cell(switches), report.Cell(calls),
			report.Cell(c.p50(func(c child) float64 { return float64(c.start.Calls) })), exits,
			report.Cell(c.p50(func(c child) float64 { return float64(c.request.Faults) })), report.Cell(dirtied),
			report.Cell(millis(c.vmmCPU)), report.Cell(millis(c.daemonCPU)), report.Cell(private))
		most := c.budget()
		t.Notef("n=%d, pool %s: at most %.0f context switches: %s; %.0f system calls: %s; %.2f ms of CPU in the VMM: %s; "+
			"%d KiB private: %s; %d KiB of guest memory written: %s", c.n, pool,
			most.switches, met(switches <= most.switches), most.calls, met(calls <= most.calls),
			most.cpu, met(millis(c.vmmCPU) <= most.cpu), privateBudget, met(private <= privateBudget),
			dirtiedBudget, met(dirtied*float64(os.Getpagesize())/1024 <= dirtiedBudget))
	}
	t.Notef("of the VMM, from the request (the whole of it where the pool is cold) until %v after the answer, taken from forks "+
		"of their own: counting slows them down, so that CPU times, which are means, are too high here", countSettle)
	t.Notef("KVM exits: those that the kernel handles included; private: without guest RAM; where a VMM is the only one of the " +
		"host (n=1, pool cold) all of its program is its own")
	return t
}
