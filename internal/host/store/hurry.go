package store

import (
	"slices"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/phase"
)

// Data that a VM has written to its disk is flushed at the rate of the VM's disk limits, even while
// the flusher waits for the flush. Snapshots of other owners then wait too. So these limits are
// lifted from the beginning of Publish until the first attempt to flush the snapshot has ended, and
// during each later attempt. Between attempts the limits apply, because otherwise a snapshot that
// never fits on the disk would lift them for ever.

// hurry lifts the disk limits of one VM until done is called.
type hurry func() (done func())

// Hurry stores the function lift, for Publish. The function lifts the disk limits of the VM that
// has written the snapshot's disk.
func (g *Staging) Hurry(lift func() (done func())) { g.lift = lift }

// hurriesLocked returns functions for all VMs whose data in the disk layers of the snapshot m may
// not be on disk yet. Each function lifts the disk limits of one VM. The given function is for the
// VM of m.
func (s *Store) hurriesLocked(m *snapshot.Manifest, lift hurry) (all []hurry) {
	if m.Parent != nil && s.byID[m.Parent.ID] != nil {
		all = append(all, s.byID[m.Parent.ID].hurries...) // for inherited layers; empty after the parent was flushed
	}
	if lift != nil {
		all = append(all, lift)
	}
	return all
}

// liftAll calls all functions, and returns a function that restores the limits.
func liftAll(hurries []hurry) (done func()) {
	var ends []func()
	for _, lift := range hurries {
		ends = append(ends, lift())
	}
	return func() {
		for _, end := range ends {
			end()
		}
	}
}

// HurryTakenOver is like Hurry, for the unflushed snapshots of a sandbox that an earlier daemon has
// started. It finds these snapshots by their disk layers. If the snapshot that owns a layer has
// been deleted, the store cannot tell which sandbox has written the layer. So the caller also gives
// the IDs of the snapshots that own the sandbox's frozen disk tops. The given function lifts the
// disk limits of the sandbox's present VM.
func (s *Store) HurryTakenOver(sandbox string, frozen []string, lift func() (done func())) {
	s.mu.Lock()
	var found []*entry
	for _, e := range s.byTag {
		if e.Phase == phase.Hot && s.hasDiskOfLocked(e.manifest, sandbox, frozen) {
			found = append(found, e)
		}
	}
	s.mu.Unlock()
	for _, e := range found {
		done := lift()
		s.mu.Lock()
		hot := e.Phase == phase.Hot // if the phase is not Hot, no further attempt follows
		if hot {
			e.hurries, e.calm = append(e.hurries, lift), append(e.calm, done)
		}
		s.mu.Unlock()
		if !hot {
			done()
		}
	}
}

// hasDiskOfLocked reports whether a snapshot has a disk layer that was made for a branch of the
// sandbox, or whose owner is in the given list.
func (s *Store) hasDiskOfLocked(m *snapshot.Manifest, sandbox string, frozen []string) bool {
	if m.Disk == nil {
		return false
	}
	for _, l := range m.Disk.Layers {
		if slices.Contains(frozen, l.Owner) {
			return true
		}
		owner := m
		if l.Owner != m.ID {
			if s.byID[l.Owner] == nil {
				continue
			}
			owner = s.byID[l.Owner].manifest
		}
		if owner.Branch != nil && owner.Branch.SandboxID == sandbox {
			return true
		}
	}
	return false
}
