package store

import "github.com/forkd/forkd/internal/host/fileid"

// A sandbox follows the branch that it was rebased onto. The sandbox's line consists of the layers
// that this branch has in addition to the layers of the snapshot from which the sandbox runs. The
// layers of a line stay in RAM even if they are on disk and their snapshots are deleted, because
// the sandbox's memory is mapped from them. If a snapshot in a line is deleted before it is on
// disk, its layer is never written to disk.

// Line describes the line of the sandboxes that follow the snapshot with the given ID. It returns
// the number of memory layers of the snapshot, and how many bytes the layers in the line take.
func (s *Store) Line(id string) (layers int, bytes uint64) {
	type paths struct{ ram, disk string }
	var line []paths
	s.mu.Lock()
	if e := s.byID[id]; e != nil {
		layers = len(e.manifest.Memory)
		for _, owner := range s.lineLocked(e) {
			line = append(line, paths{s.ramLayer(owner), layerPath(e.dir, e.manifest, owner)})
		}
	}
	s.mu.Unlock()
	for _, l := range line {
		// An unflushed layer is only in RAM. If RAM is short, a flushed layer may be only on disk.
		bytes += max(fileid.Blocks(l.ram), fileid.Blocks(l.disk))
	}
	return layers, bytes
}

// lineLocked returns the owners of the layers in a line. These are the layers that the branch e has
// in addition to the layers of the snapshot that its sandbox runs from.
func (s *Store) lineLocked(e *entry) (owners []string) {
	var from *entry
	if e.manifest.Parent != nil {
		from = s.byID[e.manifest.Parent.ID]
	}
	for _, l := range e.manifest.Memory {
		if from == nil || !from.manifest.HasMemory(l.Owner) {
			owners = append(owners, l.Owner)
		}
	}
	return owners
}

// lines returns, for each owner of sandboxes, how many bytes of RAM the memory layers in the lines
// of these sandboxes take. It omits layers that are to be written to disk, because Store.unflushed
// returns these.
func (s *Store) lines() map[string]uint64 {
	of := make(map[string]string) // owners of sandboxes, by layer
	s.mu.Lock()
	for _, e := range s.byID {
		if e.refs.follow == 0 {
			continue
		}
		for _, layer := range s.lineLocked(e) {
			if own := s.byID[layer]; own == nil || !own.AwaitsFlush() {
				of[layer] = e.follower
			}
		}
	}
	s.mu.Unlock()
	bytes := make(map[string]uint64)
	for layer, owner := range of {
		bytes[owner] += fileid.Blocks(s.ramLayer(layer))
	}
	return bytes
}
