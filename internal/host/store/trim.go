package store

import (
	"errors"
	"github.com/forkd/forkd/internal/host/fileid"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/sparse"
)

// Layers in RAM have holes, and VMMs have the layers open for reading. When a process reads a hole
// through a mapping, tmpfs allocates a page, and keeps it after the process has ended. A working
// VMM never does that, because extents cover no holes. But a compromised VMM could fill all holes,
// and thus use up the host's memory. The functions in this file free such pages.

// trimSlack is how many bytes a layer may grow before it is trimmed.
const trimSlack = 1 << 20

// measureOwn sets the usual size of the snapshot's own layer, which is its last layer. This size is
// at most the size of the layer's extents. The layer may be larger now, because VMMs of an earlier
// daemon may have filled holes.
func (h *hotFiles) measureOwn() {
	last := len(h.layers) - 1
	if last < 0 {
		return
	}
	covered := uint64(0)
	for _, e := range sparse.Over(h.extents, last) {
		covered += e.Length
	}
	h.usual[last].Store(min(h.usual[last].Load(), covered))
}

// trim frees pages in the holes of layers that have grown. A layer that is not on disk yet is
// skipped, and is trimmed at the end of a later lease. A decrypted layer is skipped too, because it
// is freed with the last lease. A served layer is skipped, because it has no pages in RAM. The
// caller must hold a lease.
func (s *Store) trim(e *entry, h *hotFiles) {
	for i, l := range h.manifest.Memory {
		if h.arrival != nil || isDecrypted(h.layers[i]) || fileid.BlocksOf(h.layers[i]) <= h.usual[i].Load()+trimSlack {
			continue
		}
		s.mu.Lock()
		dir := e.dir
		s.mu.Unlock()
		// After an error, the layer is trimmed at the end of the next lease.
		if s.trimLayer(dir, h.manifest, l, h.layers[i]) == nil {
			// Measure the file in RAM, because blocks on disk may be larger, or compressed.
			h.usual[i].Store(fileid.BlocksOf(h.layers[i]))
		}
	}
}

// trimLayer frees pages of a layer in RAM wherever the layer's file on disk has holes. The given
// file is the layer's file in RAM. No process writes to either file any more.
func (s *Store) trimLayer(dir string, m *snapshot.Manifest, l snapshot.File, hot *os.File) error {
	disk, err := s.openSized(layerPath(dir, m, l.Owner), l.Bytes)
	if err != nil {
		return err
	}
	defer disk.Close()
	if id, err := fileid.Of(disk); err != nil || s.origin(l.Owner) != id {
		return errors.Join(err, errors.New("the layer in RAM is not that of the file on disk"))
	}
	ram, err := os.OpenFile(s.ramLayer(l.Owner), os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer ram.Close()
	before, err := hot.Stat()
	if err != nil {
		return err
	}
	if now, err := ram.Stat(); err != nil || !os.SameFile(before, now) || uint64(now.Size()) != l.Bytes {
		return errors.Join(err, errors.New("the layer in RAM is another file now"))
	}
	return sparse.Punch(ram, disk, int64(l.Bytes))
}
