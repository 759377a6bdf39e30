package chain

import (
	"context"
	"fmt"
	"os"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/host/identity"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Volume is the disk of a volume slot.
type Volume struct {
	SizeBytes uint64
	Files     []*os.File // base image, layers and top; none: the slot is empty
}

// Restore restores a leased snapshot into a VM and starts the VM. The file top, made by NewTop,
// becomes the top of the VM's disk. The first volume slots get the volumes, and the other slots are
// empty. If network is set, the VM must have a frame socket, see vmpool.VMM.DialFrames.
func Restore(ctx context.Context, vmm vmpool.VMM, lease *store.Lease, top *os.File, volumes []Volume, network bool) (
	vmmproto.RestoreResult, error) {
	files := vmmclient.RestoreFiles{State: lease.State(), Layers: lease.Layers()}
	req := vmmproto.Restore{Extents: lease.Extents(), VMGenID: identity.NewGenerationID(), Resume: true,
		Net: network, FirstWrites: lease.FirstWrites.Pages()}
	if d := lease.Manifest().Disk; d != nil {
		var undo cleanup.Stack
		defer func() {
			defer lease.Arrival().Watch()()
			undo.Run()
		}()
		opened := lease.Arrival().Watch()
		own, err := Reopened(&undo, lease.Disk())
		opened()
		if err != nil {
			return vmmproto.RestoreResult{}, err
		}
		files.Disks = [][]*os.File{append(own, top)}
		req.Disks = []vmmproto.Disk{{SizeBytes: d.SizeBytes}}
	}
	slots := int(lease.Manifest().Machine.VolumeSlots)
	if len(volumes) > slots {
		return vmmproto.RestoreResult{}, fmt.Errorf("%d volumes for %d volume slots", len(volumes), slots)
	}
	for i := range slots {
		v := Volume{}
		if i < len(volumes) {
			v = volumes[i]
		}
		files.Disks = append(files.Disks, v.Files)
		req.Disks = append(req.Disks, vmmproto.Disk{SizeBytes: v.SizeBytes, Volume: true})
	}
	return vmm.Restore(ctx, req, files)
}

// Reopened reopens files with disklayer.Reopen. When undo runs, it closes the new files.
func Reopened(undo *cleanup.Stack, files []*os.File) (own []*os.File, err error) {
	for _, f := range files {
		again, err := disklayer.Reopen(f)
		if err != nil {
			return nil, err
		}
		undo.Add(func() { again.Close() })
		own = append(own, again)
	}
	return own, nil
}
