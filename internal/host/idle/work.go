package idle

import (
	"context"
	"time"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// Bounds of Guest.Works. If a guest does not answer within askLimit, Works assumes that no program
// in the guest holds the lock (see agentproto.BusyFile).
const (
	window    = time.Second // time for which the processor time is measured
	busyShare = 4           // a guest works if it uses more than 1/busyShare of one CPU
	askLimit  = 2 * time.Second
)

// Guest measures the work of one guest.
type Guest struct {
	Usage func() (cgroup.Usage, error)
	Net   func(context.Context) (netproto.Stats, error)
	Dial  agentclient.DialFunc
}

// Works reports whether a guest works while no client uses it. It takes at most three seconds, and
// returns false when one of the contexts ends. Activity that cannot be measured does not count as
// work.
func (g *Guest) Works(ctx, other context.Context) bool {
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(other, end)()
	ask, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if stats, err := g.Net(ask); err == nil && stats.Open > 0 {
		return true
	}
	if held, err := agentclient.New(g.Dial).Busy(ask); err == nil && held {
		return true
	}
	before, err := g.Usage()
	if err != nil {
		return false
	}
	start := time.Now()
	select {
	case <-time.After(window):
	case <-ctx.Done():
		return false
	}
	after, err := g.Usage()
	return err == nil && after.CPU-before.CPU > time.Since(start)/busyShare
}
