package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// Kinds of VMMs that -unjailed compares. They fork in turn in one process, so that what disturbs
// the host disturbs both.
const (
	jailed = iota
	unjailed
	kinds
)

// pair is something of each kind.
type pair[T any] [kinds]T

// memoryRounds is how many forks of each kind are measured for the memory of a child: other
// processes move the host's figures, and the median of a few forks less.
const memoryRounds = 9

// compare measures forks with warm pools, then the memory of children, of VMMs in their jail and of
// those of the program bin, which have none.
func (b *bench) compare(ctx context.Context, bin string) ([]*report.Table, error) {
	if err := builtAlike(b.host.VMMs.Bin, bin); err != nil {
		return nil, err
	}
	bin, err := lab.CopyBinary(b.host.Dir, bin)
	if err != nil {
		return nil, err
	}
	vmms := vmpool.Processes{Bin: bin}
	var rows []*pair[cell]
	for i, n := range b.opt.ns.List {
		// Each row has its share of the time: those of the first ones would take all of it on a
		// busy host.
		until := time.Now().Add(time.Until(b.Deadline()) / time.Duration(len(b.opt.ns.List)-i))
		b.Progress("n=%d, warm pools, jailed and unjailed in turn", n)
		row := &pair[cell]{{n: n, poolWarm: true}, {n: n, poolWarm: true}}
		rows = append(rows, row)
		if err := b.withBoth(vmms, n, func(both pair[*lab.Manager]) error {
			return forkInTurn(ctx, both, row, b.opt.samples, until)
		}); err != nil {
			return nil, err
		}
	}
	n := largest(b.opt.ns.List)
	b.Progress("memory of %d children, jailed and unjailed in turn", n)
	var memories pair[[]*memory]
	if err := b.withBoth(vmms, 0, func(both pair[*lab.Manager]) error {
		return measureInTurn(ctx, both, n, &memories)
	}); err != nil {
		return nil, err
	}
	return jailTables(b.guest.name, rows, memories), nil
}

// withBoth calls f with a manager of each kind.
func (b *bench) withBoth(vmms vmpool.VMMs, pool int, f func(pair[*lab.Manager]) error) error {
	return b.withManager(pool, func(first *lab.Manager) error {
		o := lab.Options{Pool: pool, VMMs: vmms, Guest: b.guest.client}
		return b.host.WithManager(o, func(second *lab.Manager) error { return f(pair[*lab.Manager]{first, second}) })
	})
}

// forkInTurn forks until each kind has enough children, or some and the time is up. As in cell.run
// the first fork of each is not counted. No pool is being filled while the other kind forks.
func forkInTurn(ctx context.Context, both pair[*lab.Manager], row *pair[cell], samples int, until time.Time) error {
	for _, m := range both {
		if _, err := m.Fork(ctx, sandbox.ForkRequest{Tag: tag, N: 1}); err != nil {
			return err
		}
		m.KillAll()
	}
	for last := &row[kinds-1]; last.runs == 0 || len(last.vmm) < samples && time.Now().Before(until); {
		for kind, m := range both {
			for _, each := range both {
				if err := each.WaitPool(ctx, last.n); err != nil {
					return err
				}
			}
			if err := row[kind].fork(ctx, m, false); err != nil {
				return err
			}
			m.KillAll()
		}
	}
	return nil
}

// measureInTurn forks n children at a time and measures their memory. Nobody waits in a pool: all
// that the host has for a child, it has since before the fork. The first round is not counted.
func measureInTurn(ctx context.Context, both pair[*lab.Manager], n int, memories *pair[[]*memory]) error {
	for round := range memoryRounds + 1 {
		for kind, m := range both {
			c := &cell{n: n}
			if err := c.fork(ctx, m, true); err != nil {
				return err
			}
			m.KillAll()
			if round > 0 {
				memories[kind] = append(memories[kind], c.memory)
			}
		}
	}
	return nil
}

// builtAlike refuses two programs that differ in more than the jail: with cgo or with another
// collector, for example, a VMM has another size.
func builtAlike(a, b string) error {
	first, err := buildinfo.ReadFile(a)
	if err != nil {
		return err
	}
	second, err := buildinfo.ReadFile(b)
	if err != nil {
		return err
	}
	if first.GoVersion != second.GoVersion {
		return fmt.Errorf("%s is built by %s, forkd-vmm by %s", b, second.GoVersion, first.GoVersion)
	}
	for _, key := range []string{"CGO_ENABLED", "GOEXPERIMENT", "GOAMD64", "-trimpath", "-race"} {
		if x, y := setting(first, key), setting(second, key); x != y {
			return fmt.Errorf("%s is built with %s=%q, forkd-vmm with %q: build it as scripts/bench does", b, key, y, x)
		}
	}
	return nil
}

func setting(info *buildinfo.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
