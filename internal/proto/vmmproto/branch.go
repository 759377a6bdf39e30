package vmmproto

import (
	"errors"
	"fmt"
	"time"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Branch saves a machine while it runs: its state, the memory that it has written over its layers,
// and its disks. The disks' tops become layers below the donated new tops. From then on the VMM
// reads the old tops only through the donated descriptors, which do not permit writing. State,
// memory and disks belong to the same instant. A paused machine stays paused. Mode vm.BranchDisk
// saves neither state nor memory, and donates no files for them.
type Branch struct {
	Mode       vm.BranchMode
	MaxExtents uint32 // small gaps between written pages are filled until the map has at most this many extents
	Disks      uint32 // two donated files for each disk: a new top, and the current one for reading
	Serial     uint64 // copied to Branched, which may report a branch that an earlier daemon requested

	Keep         bool // live and diff: keep track of pages that still equal the layer, for Rebase
	SinceRestore bool // live and diff: save the pages written since the restore, not since the last Rebase

	// StormFaults is how many write faults a live branch serves before it stops the guest until the
	// rest is copied. 0: it stops the guest if faults capture most of the pages. The daemon always
	// sends 0. The torture tests use it to reach the stop with any guest, because they test the
	// shipped VMM, which has no special switch.
	StormFaults uint64
}

// BranchResult describes a branch at the moment when the guest runs again. The layer of a live
// branch is not complete before Branched.
type BranchResult struct {
	Save     SaveResult
	Serial   uint64        // Serial of the Branch
	Mode     vm.BranchMode // actual mode: a live branch falls back to diff if the host does not support it
	Fallback string        // reason of the fallback; empty if there was none
	Kept     bool          // Rebase may follow when the layer is complete; false without userfaultfd on the host
	Pause    time.Duration // from the request to stop the vCPUs until they entered again
	Arm      time.Duration // part of Pause for write-protecting (live) or copying
}

// Branched reports that the layer of a live branch is complete, or has failed.
type Branched struct {
	Serial uint64        // Serial of the Branch
	Failed *Error        // nil: the layer is complete
	Copy   time.Duration // time since the guest was resumed
	Faults uint64        // pages that were copied because a vCPU wrote them
	Stop   time.Duration // how long the guest was stopped again because it wrote faster than pages were copied
}

// Rebase replaces the pages that the machine has not written since a branch by private mappings of
// the branch's memory layer, which is donated. The machine runs during the rebase. When it begins,
// Stats.Rebases is incremented. From then on, private pages are those that differ from the branch's
// snapshot, so the next branch saves only these. The snapshot must exist as long as the machine. If
// the machine no longer knows which pages are unwritten, it changes nothing and answers
// vm.ErrNotKept. That happens after 30 seconds, another branch, or a Restore.
type Rebase struct {
	Serial uint64 // Serial of the Branch
}

// RebaseResult describes a rebase.
type RebaseResult struct {
	Bytes    uint64        // bytes replaced; the branch's other pages stay private
	Mappings uint64        // number of mappings in the memory after the rebase
	Took     time.Duration // duration; the guest was running
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

// Merge replaces the layers of a disk from First, counted above the base image, to the last one
// below its top by one donated layer with their content. Each branch adds a layer, and the
// individual layers are no longer needed.
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
