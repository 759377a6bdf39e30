package main

import (
	"fmt"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/vmtest/opcount"
)

// matrix holds all measurements.
type matrix struct {
	guest string
	peers []*peer
	rows  []*row
}

// row has the measurements for one number of children, with a pool or without one.
type row struct {
	n     int
	warm  bool
	peers []*peer
	cells [][]*cell // by peer and width; empty if the peer is omitted here
}

// best returns the peer's cell with the lowest median time of whole forks, or nil if the peer has
// no cell.
func (r *row) best(peer int) (best *cell) {
	for _, c := range r.cells[peer] {
		if best == nil || c.p50Last() < best.p50Last() {
			best = c
		}
	}
	return best
}

func (r *row) pool() string {
	if r.warm {
		return "warm"
	}
	return "cold"
}

func newMatrix(guest string, peers []*peer, ns []int) *matrix {
	m := &matrix{guest: guest, peers: peers}
	for _, warm := range []bool{true, false} {
		for _, n := range ns {
			r := &row{n: n, warm: warm, peers: peers, cells: make([][]*cell, len(peers))}
			for i, p := range peers {
				if p.absent != "" || !p.pool && warm {
					continue
				}
				ways := []int{0}
				if p.driven {
					ways = widthsFor(n)
				}
				for _, width := range ways {
					r.cells[i] = append(r.cells[i], &cell{n: n, warm: warm, width: width})
				}
			}
			m.rows = append(m.rows, r)
		}
	}
	return m
}

// times returns the table of the two times: until a child runs, and until it has answered.
func (m *matrix) times() *report.Table {
	t := &report.Table{Title: "From one request: its children run, and have answered; guest " + m.guest,
		Columns: []report.Column{
			{Name: "n"}, {Name: "pool"}, {Name: "peer"}, {Name: "at a time"}, {Name: "forks"},
			{Name: "vCPUs entered p50 ms", Digits: 2}, {Name: "entered ×", Digits: 2},
			{Name: "answered p50 ms", Digits: 2}, {Name: "p25", Digits: 2}, {Name: "p75", Digits: 2},
			{Name: "answered p99 ms", Digits: 2}, {Name: "all answered p50 ms", Digits: 2},
			{Name: "answered ×", Digits: 2}}}
	for _, r := range m.rows {
		ours := r.best(0)
		for i := range r.cells {
			c := r.best(i)
			if c == nil {
				if m.peers[i].pool || !r.warm {
					t.Add(r.n, r.pool(), m.peers[i].name, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil)
				}
				continue
			}
			var width any
			if c.width > 0 {
				width = min(c.width, r.n)
			}
			t.Add(r.n, r.pool(), m.peers[i].name, width, len(c.last),
				report.Cell(c.p50Entered()), report.Cell(c.p50Entered()/ours.p50Entered()),
				report.Cell(c.p50Answered()), report.Cell(report.Quantile(c.answered, 0.25)),
				report.Cell(report.Quantile(c.answered, 0.75)), report.Cell(report.Quantile(c.answered, 0.99)),
				report.Cell(c.p50Last()), report.Cell(c.p50Answered()/ours.p50Answered()))
		}
	}
	t.Notef("every time counts from the request for all n; p50 and p99 are of children, the last p50 is of forks; "+
		"×: against %s", m.peers[0].name)
	t.Notef("at a time: how many children the driver of a peer starts at a time. Each of %v was measured, and the row has "+
		"the one whose forks were complete first; %s decides by itself", widths, m.peers[0].name)
	t.Notef("pool warm: processes were waiting for the request; cold: starting them is part of it. A container is " +
		"always started: there is nothing to fork")
	m.notes(t)
	return t
}

// notes adds notes that describe the peers.
func (m *matrix) notes(t *report.Table) {
	for _, p := range m.peers {
		if p.absent != "" {
			t.Notef("%s takes no part: %s", p.name, p.absent)
		} else {
			t.Notef("%s: %s", p.name, p.how)
		}
	}
}

// costs returns the table of the costs of a child.
func (m *matrix) costs() *report.Table {
	t := &report.Table{Title: "What a child takes, from the request until it has answered and a tenth of a second longer",
		Columns: []report.Column{{Name: "n"}, {Name: "pool"}, {Name: "peer"},
			{Name: "VMM CPU ms", Digits: 2}, {Name: "daemon CPU ms", Digits: 2}, {Name: "context switches"},
			{Name: "system calls"}, {Name: "KVM exits"}, {Name: "host page faults"}, {Name: "private KiB"}}}
	for _, r := range m.rows {
		for i := range r.cells {
			c := r.best(i)
			if c == nil {
				continue
			}
			t.Add(r.n, r.pool(), m.peers[i].name, report.Cell(c.vmmCPU()), report.Cell(c.driverCPU()),
				report.Cell(c.p50Count(func(c opcount.Counts) uint64 { return c.Switches })),
				report.Cell(c.p50Count(func(c opcount.Counts) uint64 { return c.Calls })), c.exits(),
				report.Cell(c.p50Count(func(c opcount.Counts) uint64 { return c.Faults })),
				report.Cell(report.Quantile(c.private, 0.5)))
		}
	}
	t.Notef("CPU times are means, all else is p50; daemon: this process, in which forkd's manager and the drivers of the " +
		"others run; private: without guest RAM, and where a VMM is alone (n=1) with all of its program; system calls and the " +
		"like from forks of their own, which are not timed")
	t.Notef("a blank figure was not measured: the time was up, or it cannot be had, for the work is done by processes that " +
		"this program did not start")
	return t
}

// chart returns a chart of the times until the answers.
func (m *matrix) chart(host report.Host) *report.Chart {
	c := &report.Chart{
		Title:    "One request for n sandboxes: how long until a sandbox has answered (p50)",
		Subtitle: fmt.Sprintf("guest: %s; %d CPUs, %s", m.guest, host.CPUs, accelWords(host.Accel)),
		Unit:     "ms",
	}
	for _, r := range m.rows {
		g := report.ChartGroup{Name: fmt.Sprintf("n = %d, pool %s", r.n, r.pool())}
		for i, p := range m.peers {
			switch cell := r.best(i); {
			case cell != nil:
				g.Bars = append(g.Bars, report.ChartBar{Name: p.name, Value: cell.p50Answered(), Ours: i == 0})
			case p.pool || !r.warm:
				g.Bars = append(g.Bars, report.ChartBar{Name: p.name, Missing: p.absent})
			}
		}
		c.Groups = append(c.Groups, g)
	}
	return c
}

// accelWords says in words what ran the guests. It is used in a chart, so that readers do not
// mistake emulation for hardware.
func accelWords(accel string) string {
	switch accel {
	case lab.AccelKVM:
		return "hardware KVM"
	case lab.AccelTCG:
		return "emulated CPU: compare within the chart only"
	}
	return "kvm-pvm, no hardware virtualization: compare within the chart only"
}
