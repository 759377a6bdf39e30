package main

import (
	"slices"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
)

func largest(ns []int) int { return slices.Max(ns) }

// matrix returns the cells. It omits the largest n with a cold page cache. This combination would
// take long and give little information.
func matrix(o *options) []*cell {
	var cells []*cell
	ns := o.ns.List
	for _, n := range ns {
		for _, warm := range []bool{true, false} {
			cells = append(cells, &cell{n: n, poolWarm: warm})
			if o.coldAll || n < largest(ns) || len(ns) == 1 {
				cells = append(cells, &cell{n: n, poolWarm: warm, coldPage: true})
			}
		}
	}
	return cells
}

func quantile(ds []time.Duration, q float64) any {
	return report.Cell(report.Quantile(report.Millis(ds...), q))
}

// tables returns the tables for the cells. If the floor was not measured, f is nil.
func (b *bench) tables(cells []*cell, f *floor) []*report.Table {
	tables := []*report.Table{b.clockOne(cells, f), b.clockTwo(cells), b.parts(cells)}
	for _, c := range cells {
		if c.memory != nil {
			tables = append(tables, c.memory.table())
		}
	}
	return tables
}

// clockOne shows how long the VMM works, in comparison with the floor.
func (b *bench) clockOne(cells []*cell, f *floor) *report.Table {
	t := &report.Table{Title: "Clock (i): request → vCPUs entered; guest " + b.guest.name, Columns: []report.Column{
		{Name: "n"}, {Name: "pool"}, {Name: "page cache"}, {Name: "forks"},
		{Name: "child min ms", Digits: 2}, {Name: "child p50 ms", Digits: 2}, {Name: "child p99 ms", Digits: 2},
		{Name: "all n p50 ms", Digits: 2}, {Name: "floor ms", Digits: 2}, {Name: "× floor", Digits: 2},
		{Name: "× floor's work", Digits: 2}}}
	for _, c := range cells {
		wall := report.Quantile(report.Millis(c.vmmWall...), 0.5)
		var low, ratio, work any
		if f != nil {
			low, ratio = f.burst[c.n], report.Cell(wall/f.burst[c.n])
			if c.n == 1 {
				work = report.Cell(wall / report.Quantile(f.work, 0.5))
			}
		}
		t.Add(c.n, c.pool(), c.page(), c.runs, quantile(c.vmm, 0), quantile(c.vmm, 0.5), quantile(c.vmm, 0.99),
			report.Cell(wall), low, ratio, work)
		if f != nil && !c.coldPage && c.runs > 0 {
			target, name := 1.0, "below the floor"
			if !c.poolWarm {
				target, name = 2.0, "within 2 × the floor"
			}
			t.Notef("target n=%d, pool %s: %s: %s (%.2f ×)", c.n, c.pool(), name, met(wall/f.burst[c.n] < target),
				wall/f.burst[c.n])
		}
		if c.poolWarm && c.pooled < len(c.vmm) {
			t.Notef("n=%d, pool warm: %d of %d children found no ready VMM", c.n, len(c.vmm)-c.pooled, len(c.vmm))
		}
	}
	t.Notef("a child's time begins with the request for all n; floor: n processes of bench/floor, as many concurrent " +
		"ones as forks have, from the start of the first to the first exit of the last")
	if b.host.Host.Accel != lab.AccelKVM {
		t.Notef("accel=%s: not what hardware virtualization gives; compare within the table only", b.host.Host.Accel)
	}
	return t
}

// clockTwo shows the time until the guest can be used.
func (b *bench) clockTwo(cells []*cell) *report.Table {
	title := "Clock (ii): request → agent confirmed; guest " + b.guest.name
	if b.opt.guest == "stub" {
		title = "Clock (ii): request → the stub's answer seen (polled every 0.2 ms)"
	}
	t := &report.Table{Title: title, Columns: []report.Column{
		{Name: "n"}, {Name: "pool"}, {Name: "page cache"}, {Name: "forks"},
		{Name: "child p50 ms", Digits: 2}, {Name: "child p99 ms", Digits: 2}, {Name: "all n p50 ms", Digits: 2},
		{Name: "CPU s per fork", Digits: 3}, {Name: "CPU ms per child", Digits: 2}}}
	for _, c := range cells {
		cpu := report.Quantile(report.Millis(c.cpu...), 0.5)
		t.Add(c.n, c.pool(), c.page(), c.runs, quantile(c.ready, 0.5), quantile(c.ready, 0.99), quantile(c.readyWall, 0.5),
			report.Cell(cpu/1e3), report.Cell(cpu/float64(c.n)))
	}
	t.Notef("CPU: the forking process and all VMMs, guests included, from the request until all have confirmed; p50 of the forks")
	return t
}

// parts shows the parts of the VMM's time.
func (b *bench) parts(cells []*cell) *report.Table {
	t := &report.Table{Title: "Inside the VMM (p50 per child)", Columns: []report.Column{
		{Name: "n"}, {Name: "pool"}, {Name: "page cache"},
		{Name: "map memory ms", Digits: 3}, {Name: "set state ms", Digits: 3}, {Name: "resume ms", Digits: 3}}}
	for _, c := range cells {
		t.Add(c.n, c.pool(), c.page(), quantile(c.mapped, 0.5), quantile(c.restored, 0.5), quantile(c.resume, 0.5))
	}
	return t
}
