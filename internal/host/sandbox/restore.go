package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/excerpt"
	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/identity"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// newTopOver makes an empty top for the disk of a snapshot, with the given name in a sandbox's data
// directory. It returns nil if the snapshot has no disk.
func (m *Manager) newTopOver(data string, lease *store.Lease, name string) (*os.File, error) {
	d := lease.Manifest().Disk
	if d == nil {
		return nil, nil
	}
	return chain.NewTop(filepath.Join(data, name), d.SizeBytes, m.cfg.NewTop)
}

// restore restores the snapshot of v.lease in the VM v. The disk of the VM gets the empty top that
// r names, and its volume slots get the given disks. The parameter start is the time when the
// request arrived. The caller must hold a place in m.restores.
func (m *Manager) restore(ctx context.Context, start time.Time, v *liveVM, data string,
	r *ledger.Record, disks *mounts.Disks) (Timing, error) {
	top, err := m.newTopOver(data, v.lease, r.Top)
	if err != nil {
		return Timing{}, err
	}
	if top != nil {
		defer top.Close()
	}
	link, err := m.join(v, r)
	if err != nil {
		return Timing{}, err
	}
	v.link = link
	result, err := chain.Restore(ctx, v.vmm, v.lease, top, disks.Volumes, link != nil)
	timing := Timing{VMM: time.Since(start), Restore: result}
	link.Ready()
	if err == nil {
		err = disks.End(ctx)
	}
	return timing, err
}

// confirm gives the guest of a VM a new identity. If the sandbox has secrets, it also gives the
// guest the certificate of the CA that forkd-net uses for the hosts of secrets. Then it tells the
// guest to mount the sandbox's volumes. It waits for the agent's answers. It records in r which
// generators repeat random numbers. The error is a *failure.UnconfirmedError, a *unique.Error, a
// *mounts.Error, or the error of ctx.
func (m *Manager) confirm(ctx context.Context, v *liveVM, r *ledger.Record) error {
	wait, cancel := context.WithTimeout(ctx, m.cfg.Confirm)
	defer cancel()
	wait, stop := vmpool.WhileAlive(wait, v.vmm)
	defer stop()
	found, err := identity.Give(wait, v.guest, r.Hostname, r.Env)
	if err == nil {
		err = m.cfg.Net.Trust(wait, r.Network, v.guest.Dial)
	}
	if err == nil {
		if err := r.AdmitUnique(found); err != nil {
			return err
		}
		err = mounts.InGuest(wait, v.guest.Dial, r.Volumes)
		if err == nil || errors.As(err, new(*agentclient.Error)) { // the guest has answered
			return err
		}
	}
	if agentclient.IsBrokenOff(err) { // the VMM may be about to exit
		select {
		case <-wait.Done():
		case <-time.After(exitDelay):
		}
	}
	err = vmpool.Cause(wait, err)
	if ctx.Err() != nil {
		return ctx.Err() // the client has cancelled, so this is not the guest's fault
	}
	m.cfg.Observer.ConfirmFailed()
	console, _ := vmpool.Console(m.cfg.VMMs, v.dir) // without the console, the error only says less
	return &failure.UnconfirmedError{ID: r.ID, Err: err, Console: excerpt.Console(console.Bytes, 5)}
}
