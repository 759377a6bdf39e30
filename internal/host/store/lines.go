package store

// A sandbox that was rebased onto its branch follows it. The layers of such a branch over the
// snapshot that the sandbox runs from are the sandbox's line. They stay in RAM even if they are on
// disk and their snapshots are deleted, because the sandbox's memory is mapped from them. If such a
// snapshot is deleted before it is on disk, its layer is never written, and is in the line only.

// Line returns the number of memory layers of the followed snapshot with an ID, and how many bytes
// those of its line have.
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
		bytes += max(blocks(l.ram), blocks(l.disk)) // only one of them if it is unflushed, or RAM is short
	}
	return layers, bytes
}

// lineLocked returns the owners of the layers that a branch has over the snapshot that its sandbox
// runs from.
func (s *Store) lineLocked(e *entry) (owners []string) {
	var from *entry
	if e.manifest.Parent != nil {
		from = s.byID[e.manifest.Parent.ID]
	}
	for _, l := range e.manifest.Memory {
		if from == nil || !hasMemory(from.manifest, l.Owner) {
			owners = append(owners, l.Owner)
		}
	}
	return owners
}

// lines returns the RAM usage of the lines of sandboxes, in bytes by the sandboxes' owner. It leaves
// out layers that are to be written to disk, which unflushed returns.
func (s *Store) lines() map[string]uint64 {
	of := make(map[string]string) // owners of sandboxes, by layer
	s.mu.Lock()
	for _, e := range s.byID {
		if e.refs.follow == 0 {
			continue
		}
		for _, layer := range s.lineLocked(e) {
			if own := s.byID[layer]; own == nil || !own.awaitsFlush() {
				of[layer] = e.follower
			}
		}
	}
	s.mu.Unlock()
	bytes := make(map[string]uint64)
	for layer, owner := range of {
		bytes[owner] += s.ramBytes(layer)
	}
	return bytes
}
