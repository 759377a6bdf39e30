package sandbox

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/excerpt"
	"github.com/forkd/forkd/internal/host/identity"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// newTopOver makes an empty top with the given name in the data directory of a sandbox, over the
// disk of lease; nil if the snapshot has no disk.
func (m *Manager) newTopOver(data string, lease *store.Lease, name string) (*os.File, error) {
	d := lease.Manifest().Disk
	if d == nil {
		return nil, nil
	}
	return chain.NewTop(filepath.Join(data, name), d.SizeBytes, m.cfg.NewTop)
}

// restore restores the snapshot leased for v into v's VM, with the empty top that r names on its
// disk. start is the time of the request. The caller holds a place in m.restores.
func (m *Manager) restore(ctx context.Context, start time.Time, v *liveVM, data string,
	r *ledger.Record) (Timing, error) {
	top, err := m.newTopOver(data, v.lease, r.Top)
	if err != nil {
		return Timing{}, err
	}
	if top != nil {
		defer top.Close()
	}
	link, frames, err := m.join(v, r)
	if err != nil {
		return Timing{}, err
	}
	v.link = link
	result, err := chain.Restore(ctx, v.vmm, v.lease, top, frames)
	timing := Timing{VMM: time.Since(start), Restore: result}
	joined(link, frames)
	return timing, err
}

// confirm gives the guest of a VM its identity and the certificate authority for the hosts of its
// secrets. It waits for the agent's answers, and records in r which generators the agent found to
// repeat. The error is an *unconfirmedError or a *unique.Error, unless the caller cancelled.
func (m *Manager) confirm(ctx context.Context, v *liveVM, r *ledger.Record) error {
	wait, cancel := context.WithTimeout(ctx, m.cfg.Confirm)
	defer cancel()
	wait, stop := vmpool.WhileAlive(wait, v.vmm)
	defer stop()
	found, err := identity.Give(wait, v.guest, r.Hostname, r.Env)
	if err == nil {
		err = m.trust(wait, v, r.Network)
	}
	if err == nil {
		return admitUnique(r, found)
	}
	if brokenOff(err) { // the VM's process may be about to exit
		select {
		case <-wait.Done():
		case <-time.After(exitDelay):
		}
	}
	err = vmpool.Cause(wait, err)
	if ctx.Err() != nil {
		return ctx.Err() // cancelled: the guest is not to blame
	}
	m.cfg.Observer.ConfirmFailed()
	console, _ := vmpool.Console(m.cfg.VMMs, v.dir) // optional: without it the error says less
	return &unconfirmedError{id: r.ID, err: err, console: excerpt.Console(console.Bytes, 5)}
}

// brokenOff reports whether err comes from a connection whose other end is gone.
func brokenOff(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}
