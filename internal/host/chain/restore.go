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

// Restore restores the snapshot of lease into a VM, with top, from NewTop, on its disk and frames,
// from join, as its network, and starts it.
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

// reopened reopens files, so that the VMM does not share open file descriptions with others. A VMM
// asks for the holes in its disk layers with lseek(2), which locks the open file description. A VMM
// that was taken over could hold that lock for ever, and block every fork of the snapshot.
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
