package vmmproto

import (
	"errors"
	"fmt"
	"time"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Branch saves a machine while it runs: its state, the memory it has written over its layers, and
// its disks, whose tops become layers below the donated new ones. From then on the VMM reads these
// layers through descriptors that it is given for it, and can write them no more. All of them are
// of one instant. A paused machine stays paused. In mode vm.BranchDisk neither state nor memory is
// saved, and no files for them are donated.
type Branch struct {
	Mode       vm.BranchMode
	MaxExtents uint32 // small gaps between written pages are filled until the map has no more extents than this
	Disks      uint32 // with two donated files each: a new top, and the present one for reading
	Serial     uint64 // returned in Branched, which may come from a branch that an earlier daemon began

	Keep         bool // live and diff: keep in mind which pages still equal the layer, for Rebase
	SinceRestore bool // live and diff: take what it has written since it was restored, not since its last Rebase

	// StormFaults is how many write faults a live branch serves before it stops the guest until the
	// rest is copied; 0: as long as most pages are captured without one. The daemon leaves it 0. It
	// is here for the torture tests, which reach the stop with any guest by it: the VMM they test
	// must be the one that is shipped, without a switch of its own.
	StormFaults uint64
}

// BranchResult describes a branch when the guest runs again. The layer of a live branch is complete
// only when Branched says so.
type BranchResult struct {
	Save     SaveResult
	Serial   uint64        // of the Branch
	Mode     vm.BranchMode // how it was done: a live branch falls back to diff where the host cannot do it
	Fallback string        // why, if so
	Kept     bool          // Rebase may follow, when the layer is complete; not where the host has no userfaultfd
	Pause    time.Duration // from the request to stop the vCPUs until they entered again
	Arm      time.Duration // of these, write-protecting (live) or copying
}

// Branched says that the layer of a live branch is complete, or never will be.
type Branched struct {
	Serial uint64        // of the Branch
	Failed *Error        // nil: the layer is complete
	Copy   time.Duration // from the guest's resumption
	Faults uint64        // pages that were copied because a vCPU wrote them
	Stop   time.Duration // time for which the guest was stopped again because it wrote faster than could be copied
}

// Rebase puts private mappings of the memory layer of a branch, which is donated, in the place of
// the pages that the machine has not written since. It runs on meanwhile. From the moment it
// begins, which Stats.Rebases counts, private pages are what differs from the snapshot of that
// branch, and no longer from the one before: the next branch has only them. The snapshot must be
// there to stay for as long as the machine. A machine that no longer knows which pages these are
// answers vm.ErrNotKept and has changed nothing: after 30 seconds, another branch, or a Restore.
type Rebase struct {
	Serial uint64 // of the Branch
}

// RebaseResult describes a rebase.
type RebaseResult struct {
	Bytes    uint64        // that were replaced; the others that the branch had stay private
	Mappings uint64        // that the memory consists of now
	Took     time.Duration // while the guest ran
}

// Append encodes m.
func (m *Rebase) Append(w *codec.Writer) { w.U64(m.Serial) }

// Parse decodes m.
func (m *Rebase) Parse(r *codec.Reader) error {
	*m = Rebase{Serial: r.U64()}
	return r.Err()
}

// Append encodes m.
func (m *RebaseResult) Append(w *codec.Writer) {
	w.U64(m.Bytes)
	w.U64(m.Mappings)
	appendDuration(w, m.Took)
}

// Parse decodes m.
func (m *RebaseResult) Parse(r *codec.Reader) error {
	*m = RebaseResult{Bytes: r.U64(), Mappings: r.U64(), Took: parseDuration(r)}
	return r.Err()
}

// Merge puts one donated layer in the place of those that a disk has from First, counted above the
// base image, up to its top. It has their content: branches add a layer each, and nobody needs them
// one by one.
type Merge struct {
	Disk  uint32
	First uint32
}

// Append encodes m.
func (m *Merge) Append(w *codec.Writer) {
	w.U32(m.Disk)
	w.U32(m.First)
}

// Parse decodes m.
func (m *Merge) Parse(r *codec.Reader) error {
	*m = Merge{Disk: r.U32(), First: r.U32()}
	return r.Err()
}

// Append encodes m.
func (m *Branch) Append(w *codec.Writer) {
	w.U8(uint8(m.Mode))
	w.U32(m.MaxExtents)
	w.U32(m.Disks)
	w.U64(m.Serial)
	w.U64(m.StormFaults)
	w.Bool(m.Keep)
	w.Bool(m.SinceRestore)
}

// Parse decodes m.
func (m *Branch) Parse(r *codec.Reader) error {
	*m = Branch{Mode: vm.BranchMode(r.U8()), MaxExtents: r.U32(), Disks: r.U32(), Serial: r.U64(), StormFaults: r.U64(),
		Keep: r.Bool(), SinceRestore: r.Bool()}
	if m.Mode < vm.BranchLive || m.Mode > vm.BranchDisk {
		return errors.Join(fmt.Errorf("unknown branch mode %d", uint8(m.Mode)), r.Err())
	}
	return r.Err()
}

// Append encodes m.
func (m *BranchResult) Append(w *codec.Writer) {
	m.Save.Append(w)
	w.U64(m.Serial)
	w.U8(uint8(m.Mode))
	w.String(m.Fallback)
	w.Bool(m.Kept)
	appendDuration(w, m.Pause)
	appendDuration(w, m.Arm)
}

// Parse decodes m.
func (m *BranchResult) Parse(r *codec.Reader) error {
	if err := m.Save.Parse(r); err != nil {
		return err
	}
	m.Serial, m.Mode, m.Fallback, m.Kept = r.U64(), vm.BranchMode(r.U8()), parseText(r), r.Bool()
	m.Pause, m.Arm = parseDuration(r), parseDuration(r)
	return r.Err()
}

// Append encodes m.
func (m *Branched) Append(w *codec.Writer) {
	w.U64(m.Serial)
	w.Bool(m.Failed != nil)
	if m.Failed != nil {
		m.Failed.Append(w)
	}
	appendDuration(w, m.Copy)
	w.U64(m.Faults)
	appendDuration(w, m.Stop)
}

// Parse decodes m.
func (m *Branched) Parse(r *codec.Reader) error {
	*m = Branched{Serial: r.U64()}
	if r.Bool() {
		m.Failed = new(Error)
		if err := m.Failed.Parse(r); err != nil {
			return err
		}
	}
	m.Copy, m.Faults, m.Stop = parseDuration(r), r.U64(), parseDuration(r)
	return r.Err()
}
