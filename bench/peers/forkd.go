package main

import (
	"context"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/internal/host/procmem"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// tag names the snapshot.
const tag = "peers"

// forkd is the peer with which all other peers are compared. It uses the daemon's own sandbox
// manager and store, with VMMs in their jails.
func (b *bench) forkd(ctx context.Context, daemon *lab.Daemon) (*peer, error) {
	p := &peer{name: "forkd", pool: true,
		how: "the daemon's sandbox manager: leases, records and events are part of it, as is the jail of every VMM"}
	memory := b.memoryMiB << 20
	if err := daemon.WithManager(lab.Options{}, func(m *lab.Manager) error {
		return b.guest.bake(ctx, daemon, m)
	}); err != nil {
		return nil, err
	}
	p.fork = func(ctx context.Context, c *cell, times int) error {
		o := lab.Options{Guest: b.guest.client()}
		if c.warm {
			o.Pool = c.n
		}
		return daemon.WithManager(o, func(m *lab.Manager) error {
			// This fork is not measured. It lets the pool fill itself.
			if _, err := m.Fork(ctx, sandbox.ForkRequest{Tag: tag, N: 1}); err != nil {
				return err
			}
			for range times {
				m.KillAll()
				if err := forkForkd(ctx, m, c, memory); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return p, nil
}

func forkForkd(ctx context.Context, m *lab.Manager, c *cell, memory uint64) error {
	if c.warm {
		if err := m.WaitPool(ctx, c.n); err != nil {
			return err
		}
	}
	if err := c.begin(); err != nil {
		return err
	}
	result, err := m.Fork(ctx, sandbox.ForkRequest{Tag: tag, N: c.n})
	if err != nil {
		return err
	}
	var children []child
	for _, s := range result.Sandboxes {
		children = append(children, child{pid: s.PID, entered: s.Timing.VMM, answered: s.Timing.Ready,
			private: func() (float64, error) {
				mem, err := procmem.Of(s.PID, memory)
				return float64(mem.TotalPrivate() - mem.Private[procmem.PartGuest]), err
			}})
	}
	return c.end(children)
}
