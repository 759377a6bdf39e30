package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/phase"
	"github.com/forkd/forkd/internal/host/sparse"
	"github.com/forkd/forkd/internal/proto/vm"
)

// A snapshot from another host gets a new ID, and its layers get new owners. So its manifest cannot
// refer to a snapshot of this host. If the store already has the content of an inherited layer or
// of a base, the new snapshot shares it. To find such content, the store compares only digests that
// it has computed itself.

// Contents has the files of a snapshot from another host.
type Contents interface {
	// Decode reads the file with the given index in artifact.Parts. It calls write(offset, p) for
	// each nonzero piece of the file, in ascending order. It returns an error if the content
	// differs from the digest in the manifest.
	Decode(ctx context.Context, part int, write func(offset uint64, p []byte) error) error
}

// Import fills g with a snapshot from another host and publishes it. artifact.Parse has checked the
// manifest m. The new snapshot has no policy, labels or sandbox, even if m has them. It is
// transient only if the caller has set m.Transient: no artifact sets it. While Import writes, it
// calls the function room, which returns an error if the disk has too little free space. If Import
// returns an error, the caller must call Discard.
func (g *Staging) Import(ctx context.Context, m *snapshot.Manifest, files Contents, room func() error) (Info, error) {
	i := g.importing(ctx, m, files, room)
	if err := i.addAll(); err != nil {
		return Info{}, err
	}
	return i.publish()
}

// importing prepares an Import.
func (g *Staging) importing(ctx context.Context, m *snapshot.Manifest, files Contents, room func() error) *importing {
	g.DurableFirst()
	fresh := &snapshot.Manifest{Machine: m.Machine, Guest: snapshot.Guest{Kernel: m.Guest.Kernel, Warm: m.Guest.Warm,
		Hostname: m.Guest.Hostname, Defaults: m.Guest.Defaults}, Transient: m.Transient}
	if m.Disk != nil {
		fresh.Disk = &snapshot.Disk{SizeBytes: m.Disk.SizeBytes}
	}
	if m.Boot != nil {
		fresh.Boot = &snapshot.Boot{}
	}
	return &importing{Staging: g, ctx: ctx, from: m, fresh: fresh, files: files, room: room,
		layers: layerParts(m), owners: make(map[string]string)}
}

// addAll adds all files of the snapshot.
func (i *importing) addAll() error {
	for n, p := range artifact.Parts(i.from) {
		if err := i.add(n, p); err != nil {
			return fmt.Errorf("import snapshot %q: %w", i.tag, err)
		}
	}
	i.fresh.Parent = i.parent()
	return nil
}

// publish makes the snapshot visible. All of its files have been added.
func (i *importing) publish() (Info, error) {
	var disk []*os.File
	defer func() {
		for _, f := range disk {
			f.Close()
		}
	}()
	for _, owner := range i.disk {
		f, err := os.Open(i.Path(snapshot.LayerFile(snapshot.DiskLayerFile, i.id, owner)))
		if err != nil {
			return Info{}, fmt.Errorf("import snapshot %q: %w", i.tag, err)
		}
		disk = append(disk, f)
	}
	if i.from.DiskOnly() {
		return i.PublishDisk(i.fresh, disk)
	}
	return i.Publish(i.fresh, i.extents, disk)
}

// layerPart describes a part that is a layer.
type layerPart struct {
	kind  string // snapshot.MemoryLayerFile or snapshot.DiskLayerFile
	n     int    // index of the layer in its chain
	own   bool   // whether this is the topmost layer
	owner string // owner in the manifest from the other host
}

// layerParts returns the layers of a snapshot, keyed by the names of their parts in an artifact.
func layerParts(m *snapshot.Manifest) map[string]layerPart {
	list := make(map[string]layerPart)
	add := func(kind, prefix string, layers []snapshot.File) {
		for n, l := range layers {
			list[prefix+strconv.Itoa(n)] = layerPart{kind, n, n == len(layers)-1, l.Owner}
		}
	}
	add(snapshot.MemoryLayerFile, artifact.MemoryPart, m.Memory)
	if m.Disk != nil {
		add(snapshot.DiskLayerFile, artifact.DiskPart, m.Disk.Layers)
	}
	return list
}

// importing is an Import in progress.
type importing struct {
	*Staging
	ctx         context.Context
	from, fresh *snapshot.Manifest
	files       Contents
	room        func() error
	layers      map[string]layerPart
	owners      map[string]string // new owners of layers that the store did not have, by the layer's owner in i.from

	extents []vm.Extent
	disk    []string // owners of the layers of the disk, lowest first

	later *later // if set, large files are added later, see Arrive
}

// add adds one file of the snapshot.
func (i *importing) add(n int, p artifact.Part) (err error) {
	layer, isLayer := i.layers[p.Name]
	switch {
	case isLayer:
		return i.addLayer(n, p, layer)
	case p.Name == artifact.MapPart:
		return i.readMap(n, p)
	case p.Name == artifact.StatePart:
		f, err := i.Create(snapshot.StateFile)
		if err != nil {
			return err
		}
		defer f.Close()
		return i.fill(f, n, p, nil)
	case p.Name == artifact.BasePart:
		i.fresh.Disk.Base, err = i.addBase(n, p)
		i.setBase(i.fresh.Disk.Base)
	case p.Name == artifact.KernelPart:
		i.fresh.Boot.Kernel, err = i.addBase(n, p)
	case p.Name == artifact.InitramfsPart:
		i.fresh.Boot.Initrd, err = i.addBase(n, p)
	}
	return err
}

// readMap reads the extents. The layer numbers in the extents stay valid, because the layers keep
// their order.
func (i *importing) readMap(n int, p artifact.Part) error {
	text := make([]byte, p.Bytes) // bounded by artifact.Parse
	err := i.files.Decode(i.ctx, n, func(at uint64, p []byte) error {
		copy(text[at:], p)
		return nil
	})
	if err != nil {
		return err
	}
	i.extents, err = snapshot.ParseMemoryMap(text, i.from.MemorySizes(), vm.RAMEnd(i.from.Machine.MemoryBytes))
	if err != nil {
		return &artifact.Error{Err: err}
	}
	return nil
}

// addLayer adds a layer. It adds only inherited layers to the manifest, because Publish adds the
// snapshot's own layers.
func (i *importing) addLayer(n int, p artifact.Part, l layerPart) error {
	chain := &i.fresh.Memory
	if l.kind == snapshot.DiskLayerFile {
		chain = &i.fresh.Disk.Layers
	}
	if !l.own {
		if owner := i.share(p, l.kind, *chain); owner != "" {
			*chain = append(*chain, snapshot.File{Owner: owner, Bytes: p.Bytes, Digest: p.Digest})
			return i.addOwner(l.kind, owner, p)
		}
	}
	name, owner := l.kind, i.id
	if !l.own {
		if owner = i.owners[l.owner]; owner == "" {
			owner = snapshot.NewID()
			i.owners[l.owner] = owner
		}
		name = snapshot.LayerFile(l.kind, i.id, owner)
		*chain = append(*chain, snapshot.File{Owner: owner, Bytes: p.Bytes, Digest: p.Digest})
	}
	var extents []vm.Extent
	if l.kind == snapshot.MemoryLayerFile {
		extents = sparse.Over(i.extents, l.n)
		if l.own && !i.store.hasRoom(min(p.Bytes, sparse.CoveredBytes(extents))) {
			return fmt.Errorf("its memory layer needs %d MiB of %s: %w", p.Bytes>>20, i.store.ram, unix.ENOSPC)
		}
	}
	if l.kind == snapshot.DiskLayerFile {
		i.disk = append(i.disk, owner)
	}
	return i.soon(n, p, func() error { return i.createLayer(n, p, l, name, extents) })
}

// createLayer writes a layer that the store did not have.
func (i *importing) createLayer(n int, p artifact.Part, l layerPart, name string, extents []vm.Extent) error {
	f, err := i.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := i.fill(f, n, p, extents); err != nil {
		return err
	}
	if l.kind == snapshot.DiskLayerFile {
		if err := checkDiskLayer(f, i.from.Disk.SizeBytes); err != nil {
			return &artifact.Error{Err: fmt.Errorf("%s: %w", p.Name, err)}
		}
	}
	if l.own { // Publish flushes the snapshot's own layer
		return nil
	}
	return f.Sync()
}

// addOwner records a layer that the store has.
func (i *importing) addOwner(kind, owner string, p artifact.Part) error {
	if kind == snapshot.DiskLayerFile {
		i.disk = append(i.disk, owner)
	}
	if i.later == nil {
		return nil
	}
	f, err := i.store.openSized(i.Path(snapshot.LayerFile(kind, i.id, owner)), p.Bytes)
	if err == nil {
		i.later.files[p.Name] = f
	}
	return err
}

func checkDiskLayer(f *os.File, size uint64) error {
	l, err := disklayer.Open(f)
	if err != nil {
		return err
	}
	defer l.Close()
	if l.Size() != size {
		return fmt.Errorf("a layer of a disk of %d bytes, not %d", l.Size(), size)
	}
	return nil
}

// content is a layer of the store.
type content struct{ path, owner string }

// findContent returns layers on disk with the content of a part.
func (s *Store) findContent(kind string, p artifact.Part) (list []content) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.byTag {
		if e.Phase != phase.Stored || e.manifest == nil || len(e.keys) > 0 { // encrypted files cannot be shared
			continue
		}
		layers := e.manifest.Memory
		if kind == snapshot.DiskLayerFile {
			layers = nil
			if e.manifest.Disk != nil {
				layers = e.manifest.Disk.Layers
			}
		}
		for _, l := range layers {
			if l.Bytes == p.Bytes && l.Digest == p.Digest && p.Digest != "" {
				list = append(list, content{filepath.Join(e.dir, snapshot.LayerFile(kind, e.manifest.ID, l.Owner)), l.Owner})
			}
		}
	}
	return list
}

// HasPart reports whether a snapshot has an artifact.Part with the given digest. Snapshots that have
// lost their names count too.
func (s *Store) HasPart(digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.parts[digest]) > 0
}

// Shared reports for each of artifact.Parts(m) whether Import can probably share it with this store. If a
// snapshot is removed before Import, Import decodes the part after all.
func (s *Store) Shared(m *snapshot.Manifest) []bool {
	layers := layerParts(m)
	var list []bool
	for _, p := range artifact.Parts(m) {
		has := false
		if l, ok := layers[p.Name]; ok {
			has = !l.own && len(s.findContent(l.kind, p)) > 0
		} else if p.Name == artifact.BasePart || p.Name == artifact.KernelPart || p.Name == artifact.InitramfsPart {
			f, err := s.openBase(snapshot.Base{Bytes: p.Bytes, Digest: p.Digest})
			if has = err == nil; has {
				f.Close()
			}
		}
		list = append(list, has)
	}
	return list
}

// share finds a layer of the store with the content of p, and makes a link to it. It returns the
// layer's owner, or "" if there is no such layer. It ignores a layer whose owner is already in the
// chain, because a chain cannot have two layers of one owner.
func (i *importing) share(p artifact.Part, kind string, chain []snapshot.File) (owner string) {
	i.store.moves.RLock()
	defer i.store.moves.RUnlock()
	for _, c := range i.store.findContent(kind, p) {
		has := func(l snapshot.File) bool { return l.Owner == c.owner }
		if slices.ContainsFunc(chain, has) {
			continue
		}
		if os.Link(c.path, i.Path(snapshot.LayerFile(kind, i.id, c.owner))) == nil {
			return c.owner
		}
	}
	return ""
}

// addBase adds a base image or a boot file to the store if the store does not have it.
func (i *importing) addBase(n int, p artifact.Part) (snapshot.Base, error) {
	want := snapshot.Base{Bytes: p.Bytes, Digest: p.Digest}
	f, err := i.store.openBase(want)
	if err != nil {
		return want, i.soon(n, p, func() error { return i.createBase(n, p, want) })
	}
	if i.later != nil && p.Name == artifact.BasePart {
		i.later.files[p.Name] = f
	} else {
		defer f.Close()
	}
	got, err := i.store.addBase(i.ctx, i.Staging, f, i.store.baseLink(want.Digest), true)
	return want, cmp.Or(err, i.sameBase(p, got, want))
}

// createBase adds a file that the store did not have.
func (i *importing) createBase(n int, p artifact.Part, want snapshot.Base) error {
	f, err := i.store.openBase(want) // another import may have added the file
	if err != nil {
		name := i.Path("incoming." + p.Name)
		if f, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return err
		}
		defer os.Remove(name) // the store has its own link
		if err := errors.Join(i.fill(f, n, p, nil), f.Sync()); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	defer f.Close()
	got, err := i.store.addBase(i.ctx, i.Staging, f, i.store.baseLink(want.Digest), true)
	return cmp.Or(err, i.sameBase(p, got, want))
}

// sameBase returns an error if the digest that the store has found differs from the digest in the
// manifest.
func (i *importing) sameBase(p artifact.Part, got, want snapshot.Base) error {
	if got != want {
		return fmt.Errorf("%s: the file has the digest %.20s…, not %.20s…", p.Name, got.Digest, want.Digest)
	}
	return nil
}

// parent returns the Parent for the new snapshot, or nil if the snapshot inherits no layers. The
// Parent is the snapshot that owns the layer directly below the new snapshot's own layer. The
// Parent's tag is unknown if the store does not have the Parent.
func (i *importing) parent() *snapshot.Ref {
	below := i.fresh.Memory
	if len(below) == 0 && i.fresh.Disk != nil {
		below = i.fresh.Disk.Layers
	}
	if len(below) == 0 {
		return nil
	}
	ref := &snapshot.Ref{ID: below[len(below)-1].Owner, Tag: i.from.Parent.Tag}
	i.store.mu.Lock()
	defer i.store.mu.Unlock()
	if e := i.store.byID[ref.ID]; e != nil && e.Listed() {
		ref.Tag = e.tag
	}
	return ref
}

// fill writes the content of a part to a new file. Inside the extents it also writes zeros, because
// a memory layer must have no holes inside its extents.
func (i *importing) fill(f *os.File, n int, p artifact.Part, extents []vm.Extent) error {
	if err := f.Truncate(int64(p.Bytes)); err != nil {
		return err
	}
	w := &sparse.Filler{Ctx: i.ctx, File: f, Room: i.room, Zeros: sparse.Covered(extents)}
	if f.Name() == i.store.ramLayer(i.id) {
		w.Room = func() error {
			if !i.store.hasRoom(sparse.RoomEvery) {
				return fmt.Errorf("too little room in %s: %w", i.store.ram, unix.ENOSPC)
			}
			return i.room() // also checks the host's memory, because the file takes memory
		}
	}
	if err := i.files.Decode(i.ctx, n, w.Write); err != nil {
		return err
	}
	return w.FillUntil(p.Bytes)
}
