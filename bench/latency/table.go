package main

import (
	"slices"

	"github.com/forkd/forkd/bench/internal/report"
)

// tally is all samples.
type tally struct{ samples map[key][]float64 }

type key struct {
	kind  string
	load  load
	procs int
}

func newTally() *tally { return &tally{make(map[key][]float64)} }

func (t *tally) add(l load, of build, r result) {
	for kind, samples := range r {
		k := key{kind, l, of.procs}
		t.samples[k] = append(t.samples[k], samples...)
	}
}

// tables are one of each kind that was measured.
func (t *tally) tables(guest string, procs []int) (all []*report.Table) {
	titles := map[string]string{
		blockRead:  "A read of 4 KiB from a disk, as the guest sees it",
		vsockTrip:  "A byte to the guest and back by vsock, as the host sees it",
		writeFault: "The first write to a page since a live branch began, as the guest sees it",
		request:    "A request with nothing to do, as the daemon sees it",
	}
	for _, kind := range []string{blockRead, vsockTrip, writeFault, request} {
		out := &report.Table{Title: titles[kind] + "; guest " + guest,
			Columns: []report.Column{{Name: "busy vCPUs"}, {Name: "threads for Go"}, {Name: "samples"}, {Name: "p50 µs", Digits: 1},
				{Name: "p99 µs", Digits: 1}, {Name: "p99.9 µs", Digits: 1}, {Name: "max µs", Digits: 1}}}
		for _, l := range loads {
			for _, n := range procs {
				samples := t.samples[key{kind, l, n}]
				if len(samples) == 0 {
					continue
				}
				out.Add(l.String(), n, len(samples), report.Quantile(samples, 0.5), report.Quantile(samples, 0.99),
					report.Quantile(samples, 0.999), slices.Max(samples))
			}
		}
		if len(out.Rows) > 0 {
			out.Notef("busy: besides the vCPU that measures; spin: they compute and never leave the guest; leave: all that " +
				"they do is to read a register that the VMM serves")
			if kind == writeFault {
				out.Notef("samples: of slow writes in a row up to 511; after a branch the first write to each page is slow, also when " +
					"the page has been captured meanwhile")
			}
			all = append(all, out)
		}
	}
	return all
}
