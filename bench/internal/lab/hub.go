package lab

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/feeder"
	"github.com/forkd/forkd/internal/host/helpervm"
	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// Hub returns a hub for the daemon's store. The hub can start snapshots before all of their data is
// there. To the given cleanup stack, it adds a function that stops the hub. This function must run
// before the store is closed.
func (d *Daemon) Hub(undo *cleanup.Stack) (*hub.Hub, error) {
	feed, err := d.install(embedded.Feed)
	if err != nil {
		return nil, err
	}
	run := filepath.Join(d.RunDir, "hub")
	if err := os.Mkdir(run, 0o700); err != nil {
		return nil, err
	}
	rehearser := helpervm.Rehearser{VMMs: d.VMMs, RunDir: run,
		Guest: func(vsock string) helpervm.Guest { return agentclient.New(agentclient.DialUnix(vsock)) }}
	ctx, stop := context.WithCancel(context.Background())
	undo.Add(stop)
	return hub.New(hub.Config{Store: d.Store, Dir: hub.Dir(filepath.Join(d.disk, "store")), Memory: d.Host.RAMMiB << 20,
		Try: vmpool.Trials{VMMs: d.VMMs, RunDir: run}.Try, Rehearse: rehearser.Run,
		Room:   func(uint64, *os.File) error { return nil },
		Feeder: &feeder.Program{Bin: feed, Jail: d.VMMs.Jail}, Log: slog.New(slog.DiscardHandler), Stopping: ctx})
}
