package chain

import (
	"context"
	"fmt"
	"os"

	"github.com/forkd/forkd/internal/host/identity"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Restore puts the snapshot of lease into a VM, with top, from NewTop, on its disk and
// frames, from join, as its network, and lets it run.
func Restore(ctx context.Context, vmm vmpool.VMM, lease *store.Lease, top, frames *os.File) (vmmproto.RestoreResult,
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
