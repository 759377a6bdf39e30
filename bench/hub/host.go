package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// host is a store with a hub, as in a daemon.
type host struct {
	dir   string
	store *store.Store
	hub   *hub.Hub
}

func newHost(dir string) (h *host, err error) {
	h = &host{dir: dir}
	root := filepath.Join(dir, "state")
	if h.store, err = store.Open(store.Config{Root: root, RAM: filepath.Join(dir, "ram")}); err != nil {
		return nil, err
	}
	h.hub, err = hub.New(hub.Config{Store: h.store, Dir: hub.Dir(root), Memory: 1 << 40,
		Try:  func(context.Context, snapshot.Machine, uint64, *os.File) error { return nil }, // no VM runs here
		Room: func(uint64, *os.File) error { return nil }, Log: slog.New(slog.DiscardHandler)})
	return h, err
}

func (h *host) close() { h.store.Close() }

// packTo writes the archive of a snapshot.
func (h *host) packTo(ctx context.Context, tag, path string) error {
	p, err := h.hub.Pack(ctx, "bench", tag)
	if err != nil {
		return err
	}
	defer p.Close()
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(p.WriteArchive(f), f.Sync(), f.Close())
}

// makeFamily makes a parent and its child. The given sizes of their content are in MiB.
func (h *host) makeFamily(ctx context.Context, parent, child int) error {
	if err := h.make(ctx, "parent", "", parent, parent+child); err != nil {
		return fmt.Errorf("make the parent: %w", err)
	}
	if err := h.make(ctx, "child", "parent", child, parent+child); err != nil {
		return fmt.Errorf("make the child: %w", err)
	}
	return nil
}

// page fills a page: half of it is random, so that it compresses about as well as the memory of a program.
func page(p []byte, r *rand.ChaCha8) {
	clear(p)
	_, _ = r.Read(p[:len(p)/2]) // never fails
}

// fill writes pages to a file, up to size.
func fill(f *os.File, size int64, r *rand.ChaCha8) error {
	p := make([]byte, vm.PageSize)
	for at := int64(0); at < size; at += vm.PageSize {
		page(p, r)
		if _, err := f.WriteAt(p, at); err != nil {
			return err
		}
	}
	return nil
}

// make publishes a snapshot of a machine. The memory and the disk of the machine each have the
// given size in MiB. The amount of data that the snapshot has for each of the two is given as
// content, also in MiB. Without a parent, the snapshot also has a base image and a kernel of 16
// MiB.
func (h *host) make(ctx context.Context, tag, parent string, content, size int) error {
	seed := [32]byte{}
	copy(seed[:], tag)
	r := rand.NewChaCha8(seed)
	g, err := h.store.Stage(tag)
	if err != nil {
		return err
	}
	defer g.Discard()
	bytes, all := int64(content)<<20, uint64(size)<<20
	write := func(name string, with func(f *os.File) error) error {
		f, err := g.Create(name)
		if err != nil {
			return err
		}
		return errors.Join(with(f), f.Close())
	}
	err = errors.Join(
		write(snapshot.MemoryLayerFile, func(f *os.File) error {
			return errors.Join(f.Truncate(int64(all)), fill(f, bytes, r))
		}),
		write(snapshot.StateFile, func(f *os.File) error { return fill(f, vm.PageSize, r) }),
		write("disk", func(f *os.File) error {
			return errors.Join(disklayer.Format(f, all), fill(f, bytes, r))
		}),
	)
	if err != nil {
		return err
	}
	m := &snapshot.Manifest{Machine: snapshot.Machine{MemoryBytes: all, VCPUs: 1, Template: vm.TemplatePortable},
		Guest: snapshot.Guest{Kernel: "bench"}, Disk: &snapshot.Disk{SizeBytes: all}}
	extents := []vm.Extent{{GPA: 0, Length: uint64(bytes)}}
	var lower []*os.File
	if parent == "" {
		err = useFiles(g, h.dir, r)
	} else {
		lease, leaseErr := h.store.Acquire(parent)
		if leaseErr != nil {
			return leaseErr
		}
		defer lease.Release()
		pm := lease.Manifest()
		m.Parent, m.Root, m.Boot = &snapshot.Ref{ID: pm.ID, Tag: pm.Tag}, pm.ID, pm.Boot
		m.Branch = &snapshot.Branch{SandboxID: "sb-bench", Mode: "live"}
		m.Memory, m.Disk.Base, m.Disk.Layers = slices.Clone(pm.Memory), pm.Disk.Base, slices.Clone(pm.Disk.Layers)
		lower = lease.Disk()[1:]
		extents[0].Layer = uint32(len(m.Memory))
		// The child's data replaces the beginning of the parent's data.
		for _, e := range lease.Extents() {
			cut := min(uint64(bytes), e.Length)
			if e.Length -= cut; e.Length > 0 {
				e.GPA, e.Offset = e.GPA+cut, e.Offset+cut
				extents = append(extents, e)
			}
		}
	}
	if err != nil {
		return err
	}
	top, err := os.Open(g.Path("disk"))
	if err != nil {
		return err
	}
	defer top.Close()
	if err := os.Rename(g.Path("disk"), g.Path(snapshot.DiskLayerFile)); err != nil {
		return err
	}
	if _, err := g.Publish(m, extents, append(lower, top)); err != nil {
		return err
	}
	return h.store.WaitFlushed(ctx, tag)
}

// useFiles gives a snapshot a base image, a kernel and an initramfs. Their files must exist until the snapshot is
// published.
func useFiles(g *store.Staging, dir string, r *rand.ChaCha8) error {
	var files [2]*os.File
	for i, name := range []string{"base", "kernel"} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		defer f.Close()
		if err := fill(f, 16<<20, r); err != nil {
			return err
		}
		files[i] = f
	}
	return errors.Join(g.UseBase(files[0]), g.UseBoot(files[1], files[1]))
}
