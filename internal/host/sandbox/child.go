package sandbox

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
)

// startChild starts one child and waits until its agent has confirmed. If no hook must run first,
// the child is then ready. After an error nothing of the child remains. The given WaitGroup counts
// the children of the same wave whose vCPUs do not run yet. The agent receives its identity only
// when the vCPUs of all these children run, because an agent that worked earlier would take CPU
// time from the restores of the other children.
func (m *Manager) startChild(ctx context.Context, start time.Time, req ForkRequest, fork string,
	restoring *sync.WaitGroup) (*Sandbox, error) {
	var undo cleanup.Stack
	defer undo.Run()
	s, err := m.restoreChild(ctx, start, req, &undo)
	restoring.Done()
	if err != nil {
		return nil, err
	}
	restoring.Wait()
	release, err := owner.TakePlace(ctx, m.confirms, "")
	if err != nil {
		return nil, err
	}
	err = m.confirm(ctx, s.live, &s.record)
	release()
	if err != nil {
		return nil, err
	}
	if s.record.WritesAsOthers() {
		s.live.lease.FirstWrites.Learn(func() ([]vm.Range, error) { return s.live.vmm.Written(ctx) })
	}
	if !req.hooked {
		if err := s.ready(start, fork); err != nil {
			return nil, err
		}
	}
	undo.Release()
	return s, nil
}

// ready writes the record of a child. A daemon that finds the record may hand the child out.
func (s *Sandbox) ready(start time.Time, fork string) error {
	s.record.Fork = fork
	err := ledger.Write(s.live.dir, &s.record)
	s.timing.Ready = time.Since(start)
	return err
}

// restoreChild restores the VM of a child. When it returns, the vCPUs run.
func (m *Manager) restoreChild(ctx context.Context, start time.Time, req ForkRequest,
	undo *cleanup.Stack) (*Sandbox, error) {
	release, err := owner.TakePlace(ctx, m.restores, "")
	if err != nil {
		return nil, err
	}
	release = sync.OnceFunc(release)
	defer release()
	lease, err := m.cfg.Store.AcquireFork(req.Tag)
	if err != nil {
		return nil, err
	}
	undo.Add(lease.Release)
	manifest := lease.Manifest()
	network, err := netclient.ForChildren(req.Network, req.Hold, req.present, manifest.Guest.Network)
	if err != nil {
		return nil, err
	}
	shell, pooled, err := m.pool.Take(ctx, manifest.Machine.Shape())
	if err != nil {
		return nil, err
	}
	s := m.newSandbox(ledger.Record{
		ID: shell.ID, PID: shell.VMM.PID(), Hostname: vmpool.Hostname(req.HostnamePrefix, shell.ID),
		Owner: owner.Of(ctx).Name, Created: start.UTC(),
		SnapshotTag: manifest.Tag, SnapshotID: manifest.ID, MemoryBytes: manifest.Machine.MemoryBytes,
		Env: req.Env, IdleTimeout: req.IdleTimeout, Limits: *cmp.Or(req.Limits, &manifest.Guest.Limits),
		Network: network, ExpirySuspends: req.ExpirySuspends, Annotation: req.Annotation, Labels: req.Labels,
		Volumes: mounts.Inherit(manifest, req.Volumes), Strict: req.Strict.Or(manifest.Guest.Strict),
		Hooks: *cmp.Or(req.Hooks, &manifest.Guest.Hooks)})
	if req.TTL > 0 {
		s.record.Expires = start.Add(req.TTL).UTC()
	}
	s.live = m.newLiveVM(s.record.Owner, shell, lease)
	undo.Add(func() { m.end(s) })
	if err := s.live.limit(&s.record); err != nil {
		return nil, err
	}
	if manifest.Disk != nil {
		s.record.Top = ledger.FirstTop
		if err := os.Mkdir(s.data, 0o700); err != nil {
			return nil, err
		}
	}
	if len(network.Secrets) > 0 { // without secrets there is no file to write: a new child has no older file to replace
		if err := ledger.WriteSecrets(s.data, network.Secrets); err != nil {
			return nil, err
		}
	}
	volumes, err := s.mounts.OpenFirst(ctx, s.record.Volumes, lease, release, m.restores)
	if err != nil {
		return nil, err
	}
	defer volumes.Close()
	if s.timing, err = m.restore(ctx, start, s.live, s.data, &s.record, volumes); err != nil {
		return nil, fmt.Errorf("restore child %s: %w", s.id, err)
	}
	s.timing.Pooled = pooled
	return s, nil
}
