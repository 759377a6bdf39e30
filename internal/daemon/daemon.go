// Package daemon is the process behind `forkd daemon`. It owns the store and the sandboxes of one
// host and serves the REST API until it is stopped.
//
// It runs no guest itself: every VM is a forkd-vmm process. These processes keep running when the
// daemon stops, and the next daemon takes them over. Only wire.go calls the constructors of the
// daemon's parts.
package daemon

import (
	"context"
	"net"
	"os"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/webhook"
)

// Run serves until ctx ends, then finishes the requests in flight. It returns nil after an orderly
// stop.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.check(); err != nil {
		return err
	}
	limitHeap(os.Getenv("GOMEMLIMIT"), cfg.Log)
	guard, err := openGuard(&cfg)
	if err != nil {
		return err
	}
	hooks, err := webhook.Open(cfg.Webhooks, cfg.Version, cfg.Log)
	if err != nil {
		return err
	}
	if err := cfg.checkDirs(); err != nil {
		return err
	}
	var kvm *kvmState
	if cfg.Probe != nil {
		kvm = &kvmState{probe: cfg.Probe}
	}
	if err := kvm.why(); err != nil {
		cfg.Log.Warn("no VM can be started", "reason", err, "fix",
			"run 'forkd doctor'; 'forkd machine start' emulates a host that has KVM")
	}
	listeners, err := listen(&cfg, guard)
	if err != nil {
		return err
	}
	defer func() {
		for _, l := range listeners {
			l.Close()
		}
	}()
	docker, err := listenDocker(&cfg)
	if err != nil {
		return err
	}
	if docker != nil {
		defer docker.Close()
	}
	w, err := wire(ctx, cfg, guard, kvm)
	if err != nil {
		return err
	}
	defer w.close(cfg.KillOnExit)
	if err := w.openDocker(&cfg); err != nil {
		return err
	}
	serving, cancel := context.WithCancel(ctx)
	var reopener, sampler, webhooks sync.WaitGroup
	reopener.Go(func() { w.reopen(serving, cfg.Reopen, cfg.Log) })
	sampler.Go(func() { w.history.Run(serving) })
	webhooks.Go(func() { hooks.Run(serving, w.follow, w.counts) })
	defer webhooks.Wait()
	defer sampler.Wait()
	var ssh sync.WaitGroup
	ssh.Go(func() { w.ssh.serve(serving, cfg.Log) })
	defer ssh.Wait()
	defer reopener.Wait()
	defer cancel()
	servers, serveCtx := errgroup.WithContext(ctx)
	servers.Go(func() error { return serve(serveCtx, cfg.Log, w.handler, listeners, maxConns) })
	if docker != nil {
		servers.Go(func() error { return serve(serveCtx, cfg.Log, w.docker, []net.Listener{docker}, maxConns) })
	}
	return servers.Wait()
}

// openGuard returns the guard for the configured tokens, certificates and peers.
func openGuard(cfg *Config) (*auth.Guard, error) {
	g := &auth.Guard{Certs: cfg.TLS.ClientCA != "", Peers: cfg.Peers}
	var err error
	if cfg.TokenFile != "" {
		g.Tokens, err = auth.OpenTokens(cfg.TokenFile, cfg.Log)
	}
	return g, err
}
