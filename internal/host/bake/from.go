package bake

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/proto/vm"
)

// acquire leases the snapshot that the parent boots from. Values that the request leaves unset are
// copied from that snapshot.
func (b *bake) acquire(req *Request) (err error) {
	if err := snapshot.CheckTag(req.From); err != nil {
		return &invalid.Error{Field: "from", Reason: err.Error()}
	}
	if b.from, err = b.cfg.Store.AcquireDisk(req.From); err != nil {
		return err
	}
	b.undo.Add(b.from.Release)
	m := b.from.Manifest()
	if !m.DiskOnly() {
		return invalid.Errorf("from", "snapshot %q has memory, and its disk lacks what that has not written back", m.Tag)
	}
	req.MemoryMiB = cmp.Or(req.MemoryMiB, m.Machine.MemoryBytes>>20)
	req.VCPUs = cmp.Or(req.VCPUs, m.Machine.VCPUs)
	req.VolumeSlots = cmp.Or(req.VolumeSlots, m.Machine.VolumeSlots)
	req.Template = cmp.Or(req.Template, m.Machine.Template)
	req.Env = m.Guest.With(snapshot.Defaults{Env: req.Env}).Env
	if req.Limits == (vm.Limits{}) {
		req.Limits = m.Guest.Limits
	}
	if req.Hooks == (snapshot.Hooks{}) {
		req.Hooks = m.Guest.Hooks
	}
	req.Strict = req.Strict || m.Guest.Strict
	if req.Network == nil {
		return nil
	}
	// The hold of the snapshot stays, because only a release ends it.
	network, err := netclient.ForChildren(req.Network, req.Network.Hold, nil, m.Guest.Network)
	req.Network = &network
	return err
}

// defaults returns the defaults of processes in children of the snapshot.
func (b *bake) defaults() snapshot.Defaults {
	d := snapshot.Defaults{Env: b.req.Env}
	if b.from != nil {
		from := b.from.Manifest().Guest
		d.User, d.Dir = from.User, from.Dir
	}
	return d
}

// inheritDefaults gives the guest the default user and directory of the snapshot from which the
// parent was booted. Warm-up steps run earlier, as root. If the disk no longer has the user's
// account, the guest keeps the agent's default user. An error here would make such a disk
// impossible to boot.
func (b *bake) inheritDefaults(ctx context.Context) error {
	d := b.defaults()
	if d.User == "" && d.Dir == "" {
		return nil
	}
	b.begin("set up the guest")
	return within(ctx, b.req.Ready, func(ctx context.Context) error {
		err := b.guest.SetDefaults(ctx, agentclient.Defaults{User: d.User, Dir: d.Dir})
		var refused *agentclient.Error
		if d.User == "" || !errors.As(err, &refused) || refused.Code != agentclient.CodeInvalid {
			return err
		}
		b.cfg.Log.Warn("a parent lacks the default user of its snapshot", "snapshot", b.req.Tag, "error", err)
		return b.guest.SetDefaults(ctx, agentclient.Defaults{Dir: d.Dir})
	})
}

// openBoot opens the kernel and initramfs that the request names, or else the snapshot's kernel and
// initramfs.
func (b *bake) openBoot() (kernel, initrd *os.File, err error) {
	if b.req.Kernel == "" {
		return b.cfg.Store.Boot(b.from.Manifest().Tag, b.from.Manifest().Boot)
	}
	if kernel, err = os.Open(b.req.Kernel); err != nil {
		return nil, nil, err
	}
	if b.req.Initrd != "" {
		initrd, err = os.Open(b.req.Initrd)
	} else {
		initrd, err = b.cfg.Initrd(b.req.Kernel)
	}
	if err == nil {
		if err = b.staging.UseBoot(kernel, initrd); err == nil {
			return kernel, initrd, nil
		}
		initrd.Close()
	}
	kernel.Close()
	return nil, nil, err
}

// openDisk opens the files below the parent's own disk layer, base image first.
func (b *bake) openDisk(ctx context.Context) error {
	if b.from != nil {
		return b.inheritDisk(ctx)
	}
	image, err := os.Open(b.req.Rootfs)
	if err != nil {
		return err
	}
	b.undo.Add(func() { image.Close() })
	st, err := image.Stat()
	if err != nil {
		return err
	}
	b.disk, b.lower = &snapshot.Disk{SizeBytes: uint64(st.Size())}, []*os.File{image}
	return b.staging.UseBase(image)
}

// inheritDisk gives the parent the disk of the snapshot from which the parent boots. If that disk
// has too many layers, inheritDisk merges them into one.
func (b *bake) inheritDisk(ctx context.Context) error {
	from := b.from.Manifest().Disk
	b.disk = &snapshot.Disk{SizeBytes: from.SizeBytes, Base: from.Base}
	b.lower = slices.Clone(b.from.Disk())
	if !chain.MergeDisk(len(from.Layers)) {
		b.disk.Layers = slices.Clone(from.Layers)
		return nil
	}
	owner := snapshot.NewID()
	merged, err := b.staging.Create(snapshot.LayerFile(snapshot.DiskLayerFile, b.staging.ID(), owner))
	if err != nil {
		return err
	}
	b.undo.Add(func() { merged.Close() })
	if err := disklayer.Merge(ctx, merged, b.lower[1:]); err != nil {
		return err
	}
	st, err := merged.Stat()
	if err != nil {
		return err
	}
	b.lower = []*os.File{b.lower[0], merged}
	b.disk.Layers = []snapshot.File{{Owner: owner, Bytes: uint64(st.Size())}}
	return nil
}
