package main

import (
	"context"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/host/procmem"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// memory has means over the children of a fork, in KiB. They are measured while all children are
// alive and idle.
type memory struct {
	children   int // number of children that were measured
	alive      int
	pss        [procmem.Parts]float64
	private    [procmem.Parts]float64
	pageTables float64
	dirtied    float64 // guest pages that a child has written between the restore and the measurement
	host       float64 // for all children: decrease of the host's available memory since before the fork
	slab       float64 // for all children: increase of the memory in the host's slabs
}

// maxSampled is the maximum number of children of one fork that are measured. Measuring a child
// takes milliseconds on an emulated host.
const maxSampled = 20

// memoryOf measures the children's memory, given the host's memory before the fork.
func memoryOf(ctx context.Context, m *lab.Manager, children []sandbox.Info, before lab.HostMemory) (*memory, error) {
	now, err := lab.ReadHostMemory()
	if err != nil {
		return nil, err
	}
	out := &memory{alive: len(children),
		host: (float64(before.Available) - float64(now.Available)) / float64(len(children)),
		slab: (float64(now.Slab) - float64(before.Slab)) / float64(len(children))}
	info, err := m.Snapshots().Detail(tag)
	if err != nil {
		return nil, err
	}
	for _, c := range children[:min(len(children), maxSampled)] {
		p, err := procmem.Of(c.PID, info.Machine.MemoryBytes)
		if err != nil {
			return nil, err
		}
		stats, err := m.Stats(ctx, c.ID)
		if err != nil {
			return nil, err
		}
		out.children++
		for i := range procmem.Parts {
			out.pss[i] += float64(p.PSS[i])
			out.private[i] += float64(p.Private[i])
		}
		out.pageTables += float64(p.PageTables)
		out.dirtied += float64(stats.VMM.GuestDirtyBytes) / 1024
	}
	out.divide(float64(out.children))
	return out, nil
}

func (m *memory) divide(n float64) {
	for i := range procmem.Parts {
		m.pss[i] /= n
		m.private[i] /= n
	}
	m.pageTables /= n
	m.dirtied /= n
}

// own is the private memory of the VMM, without guest RAM.
func (m *memory) own() float64 { return sum(m.private) - m.private[procmem.PartGuest] }

func sum(parts [procmem.Parts]float64) (total float64) {
	for _, v := range parts {
		total += v
	}
	return total
}

func (m *memory) table() *report.Table {
	t := &report.Table{Title: "Memory of an idle, confirmed child, sampled alive (KiB, mean)", Columns: []report.Column{
		{Name: "part"}, {Name: "private KiB"}, {Name: "Pss KiB"}}}
	for i := range procmem.Parts {
		t.Add(i.String(), m.private[i], m.pss[i])
	}
	t.Add("VMM besides guest RAM", m.own(), sum(m.pss)-m.pss[procmem.PartGuest])
	t.Add("whole process", sum(m.private), sum(m.pss))
	t.Add("page tables (kernel)", m.pageTables, m.pageTables)
	t.Add("all in: whole process, page tables", sum(m.private)+m.pageTables, sum(m.pss)+m.pageTables)
	t.Add("slabs of the host (kernel)", m.slab, nil)
	t.Notef("%d of %d living children read; guest pages dirtied between restore and sampling: %.0f KiB per child",
		m.children, m.alive, m.dirtied)
	t.Notef("the host's MemAvailable fell by %.0f KiB per child, kernel side included; other processes move it, and the slabs", m.host)
	const target, targetPSS, targetAll = 1024, 2048, 1331
	t.Notef("targets: VMM besides guest RAM ≤ 1 MiB private: %s; dirtied ≤ 1 MiB: %s; together ≤ 2 MiB Pss: %s; all in ≤ 1.3 MiB: %s",
		met(m.own() <= target), met(m.dirtied <= target), met(sum(m.pss) <= targetPSS),
		met(sum(m.pss)+m.pageTables <= targetAll))
	return t
}

func met(ok bool) string { return word(ok, "met", "not met") }
