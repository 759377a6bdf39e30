package main

import (
	"math"
	"slices"
	"time"

	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/host/procmem"
)

// What the jail may cost.
const (
	jailTimes = 1.03 // of a fork without it
	jailKiB   = 64.0 // per idle child
)

func jailTables(guest string, rows []*pair[cell], memories pair[[]*memory]) []*report.Table {
	return []*report.Table{
		jailClock("Jail on and off, clock (i): request → vCPUs entered; pool and page cache warm; guest "+guest, rows,
			func(c *cell) []time.Duration { return c.vmm }, func(c *cell) []time.Duration { return c.vmmWall }),
		jailClock("Jail on and off, clock (ii): request → confirmed; pool and page cache warm; guest "+guest, rows,
			func(c *cell) []time.Duration { return c.ready }, func(c *cell) []time.Duration { return c.readyWall }),
		jailParts(rows), jailMemory(memories),
	}
}

// jailClock compares one clock; child and all are its times per child and of the last child of each
// fork.
func jailClock(title string, rows []*pair[cell], child, all func(*cell) []time.Duration) *report.Table {
	t := &report.Table{Title: title, Columns: []report.Column{{Name: "n"}, {Name: "forks each"},
		{Name: "jail min ms", Digits: 3}, {Name: "jail p50 ms", Digits: 3}, {Name: "jail p99 ms", Digits: 3},
		{Name: "none min ms", Digits: 3}, {Name: "none p50 ms", Digits: 3}, {Name: "none p99 ms", Digits: 3},
		{Name: "min ×", Digits: 3}, {Name: "p50 ×", Digits: 3}, {Name: "lowest ×", Digits: 3}, {Name: "highest ×", Digits: 3},
		{Name: "all n p50 ×", Digits: 3}}}
	for _, row := range rows {
		on, off := &row[jailed], &row[unjailed]
		times := ratio(child(on), child(off), 0.5)
		low, high := spread(child(on), child(off))
		t.Add(on.n, on.runs,
			quantile(child(on), 0), quantile(child(on), 0.5), quantile(child(on), 0.99),
			quantile(child(off), 0), quantile(child(off), 0.5), quantile(child(off), 0.99),
			ratio(child(on), child(off), 0), report.Cell(times), report.Cell(low), report.Cell(high), ratio(all(on), all(off), 0.5))
		t.Notef("target n=%d: p50 with the jail ≤ %.2f × without: %s (%.3f)", on.n, jailTimes, decided(low, high), times)
		for _, c := range row {
			if c.pooled < len(c.vmm) {
				t.Notef("n=%d: %d of %d children found no ready VMM", c.n, len(c.vmm)-c.pooled, len(c.vmm))
			}
		}
	}
	t.Notef("×: with the jail : without, of p50 where nothing else is said; lowest, highest: in %d equal parts of the run, "+
		"which is how far chance alone moves it", runParts)
	return t
}

func ratio(on, off []time.Duration, q float64) float64 {
	return report.Quantile(report.Millis(on...), q) / report.Quantile(report.Millis(off...), q)
}

// runParts is into how many parts a run is cut.
const runParts = 5

// decided says whether a run shows that the target is met. Where chance moves the ratio across it,
// the run shows neither.
func decided(low, high float64) string {
	switch {
	case high <= jailTimes:
		return "met"
	case low > jailTimes:
		return "not met"
	}
	return "not decided by this run"
}

// spread returns the lowest and the highest ratio in parts of the run, NaN if it was too short.
func spread(on, off []time.Duration) (low, high float64) {
	size := len(on) / runParts
	if size == 0 {
		return math.NaN(), math.NaN()
	}
	var ratios []float64
	for i := range runParts {
		from, to := i*size, (i+1)*size
		ratios = append(ratios, ratio(on[from:to], off[from:to], 0.5))
	}
	return slices.Min(ratios), slices.Max(ratios)
}

// jailParts says where a difference comes from: CPU time is moved less by chance than clocks are.
func jailParts(rows []*pair[cell]) *report.Table {
	t := &report.Table{Title: "Jail on and off, parts of a fork (p50)", Columns: []report.Column{{Name: "n"}, {Name: "jail"},
		{Name: "CPU ms per child", Digits: 3}, {Name: "map memory ms", Digits: 3}, {Name: "set state ms", Digits: 3},
		{Name: "resume ms", Digits: 3}}}
	for _, row := range rows {
		for kind, c := range row {
			cpu := report.Quantile(report.Millis(c.cpu...), 0.5) / float64(c.n)
			t.Add(c.n, word(kind == jailed, "on", "off"), report.Cell(cpu),
				quantile(c.mapped, 0.5), quantile(c.restored, 0.5), quantile(c.resume, 0.5))
		}
	}
	t.Notef("CPU: the forking process and all VMMs, guests included, until all have confirmed")
	return t
}

// jailMemory compares the medians of the rounds.
func jailMemory(memories pair[[]*memory]) *report.Table {
	on, off := memories[jailed], memories[unjailed]
	t := &report.Table{Title: "Jail on and off, memory of an idle, confirmed child (KiB)", Columns: []report.Column{
		{Name: "part"}, {Name: "jail"}, {Name: "none"}, {Name: "grows by"}}}
	add := func(name string, of func(*memory) float64) float64 {
		a, b := medianOf(on, of), medianOf(off, of)
		t.Add(name, a, b, a-b)
		return a - b
	}
	for i := range procmem.Parts {
		if i != procmem.PartGuest {
			add(i.String()+", private", func(m *memory) float64 { return m.private[i] })
		}
	}
	own := add("VMM besides guest RAM, private", (*memory).own)
	tables := add("page tables", func(m *memory) float64 { return m.pageTables })
	add("slabs of the host", func(m *memory) float64 { return m.slab })
	host := add("all that the host has less (MemAvailable)", func(m *memory) float64 { return m.host })
	t.Notef("medians of %d forks of %d children each, of which %d were read; the last two are of the whole host",
		len(on), on[0].alive, on[0].children)
	t.Notef("target: a child grows by ≤ %.0f KiB: in its own memory and page tables: %s (%.0f); on the host: %s (%.0f)",
		jailKiB, met(own+tables <= jailKiB), own+tables, met(host <= jailKiB), host)
	return t
}

func medianOf(rounds []*memory, of func(*memory) float64) float64 {
	var values []float64
	for _, m := range rounds {
		values = append(values, of(m))
	}
	return report.Quantile(values, 0.5)
}
