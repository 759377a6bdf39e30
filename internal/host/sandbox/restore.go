package sandbox

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// newTopOver makes an empty top called name in the data directory of a sandbox, for the disk of
// lease; nil if that has none.
func (m *Manager) newTopOver(data string, lease *store.Lease, name string) (*os.File, error) {
	d := lease.Manifest().Disk
	if d == nil {
		return nil, nil
	}
	return chain.NewTop(filepath.Join(data, name), d.SizeBytes, m.cfg.NewTop)
}

// restoreVM puts the snapshot of lease into a VM, with top, from newTopOver, on its disk and
// frames, from join, as its network, and lets it run.
func restoreVM(ctx context.Context, vmm vmpool.VMM, lease *store.Lease, top, frames *os.File) (vmmproto.RestoreResult,
	error) {
	files := vmmclient.RestoreFiles{State: lease.State(), Layers: lease.Layers(), Net: frames}
	req := vmmproto.Restore{Extents: lease.Extents(), VMGenID: identity.NewGenerationID(), Resume: true,
		FirstWrites: lease.FirstWrites()}
	if d := lease.Manifest().Disk; d != nil {
		own, err := reopened(lease.Disk())
		if err != nil {
			return vmmproto.RestoreResult{}, err
		}
		defer closeAll(own)
		files.Disks = [][]*os.File{append(own, top)}
		req.Disks = []vmmproto.Disk{{SizeBytes: d.SizeBytes}}
	}
	return vmm.Restore(ctx, req, files)
}

// reopened returns files of its own for those of others. A VMM asks its disk layers where they have
// holes, by lseek(2). Processes that share an open file take turns at that: one that was taken over could
// stay in its turn for ever, and each fork of the snapshot would wait for it.
func reopened(files []*os.File) (own []*os.File, err error) {
	for _, f := range files {
		again, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
		if err != nil {
			closeAll(own)
			return nil, fmt.Errorf("open %s once more: %w", f.Name(), err)
		}
		own = append(own, again)
	}
	return own, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// restore puts the snapshot that v was leased into its VM, with the empty top that r names on its
// disk. start is when the request came in. The caller holds a place in m.restores.
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
	result, err := restoreVM(ctx, v.vmm, v.lease, top, frames)
	timing := Timing{VMM: time.Since(start), Restore: result}
	joined(link, frames)
	return timing, err
}

// confirm tells the guest of a VM who it is, and by whom it is to know the hosts of its secrets,
// and waits for its agent's answers, of which r keeps what repeats. The error is an
// *unconfirmedError, or a *NotUniqueError, unless the caller has given up.
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
	if brokenOff(err) { // its process may be about to end
		select {
		case <-wait.Done():
		case <-time.After(exitDelay):
		}
	}
	err = vmpool.Cause(wait, err)
	if ctx.Err() != nil {
		return ctx.Err() // called off: the guest is not to blame
	}
	m.cfg.Observer.ConfirmFailed()
	console, _ := vmpool.Console(m.cfg.VMMs, v.dir) // without it the error says less
	return &unconfirmedError{id: r.ID, err: err, console: excerpt.Console(console.Bytes, 5)}
}

// brokenOff reports whether err is that of a connection whose other end has gone.
func brokenOff(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}
