package vmmproto

import (
	"errors"
	"fmt"
	"time"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Branch saves the state of a running or paused machine, the memory that it has written since its
// layers were made, and its disks. State, memory and disks belong to the same instant. The top of
// each disk, its private file, becomes a layer below a new top that the daemon sends. Afterwards
// the VMM reads the old top only through a descriptor that does not permit writing. The daemon also
// sends this descriptor. A paused machine stays paused. With mode vm.BranchDisk, neither state nor
// memory is saved, and no files are sent for them.
type Branch struct {
	Mode vm.BranchMode
	// MaxExtents bounds the number of extents of the new layer. If there are more, the gaps between
	// written pages are filled, the smallest gaps first.
	MaxExtents uint32
	// Number of disks, not counting empty volume slots. Two files are sent for each of these disks:
	// a new top, and the present top for reading.
	Disks  uint32
	Serial uint64 // copied to Branched, so that a later daemon can tell which branch was requested

	// Keep tells the VMM to keep track of the pages that equal the layer, so that Rebase is
	// possible. It is for live and diff branches only.
	Keep bool
	// If SinceRestore is set, the branch saves the pages that were written since the restore, and
	// not since the last Rebase. It is for live and diff branches only.
	SinceRestore bool

	// StormFaults is the number of write faults after which a live branch stops the guest until all
	// pages are copied. If StormFaults is 0, the branch stops the guest as soon as most of the
	// copies so far were made because of write faults. The daemon always sends 0. The torture tests
	// send other values, so that they can cause the stop with any guest.
	StormFaults uint64
}

// BranchResult describes a branch. It is sent when the guest runs again. The layer of a live branch
// is complete only when Branched is sent.
type BranchResult struct {
	Save     SaveResult
	Serial   uint64        // Branch.Serial
	Mode     vm.BranchMode // actual mode: diff instead of live if the host does not support live branches
	Fallback string        // why the mode was changed; empty if it was not changed
	Kept     bool          // Rebase is possible when the layer is complete; false if the host has no userfaultfd
	Pause    time.Duration // time from the request to stop the vCPUs until they run again
	Arm      time.Duration // part of Pause in which pages are write-protected (live) or copied
}

// Branched says that the layer of a live branch is complete or has failed.
type Branched struct {
	Serial uint64        // Branch.Serial
	Failed *Error        // nil: the layer is complete
	Copy   time.Duration // time from the resumption of the guest to the end of copying
	Faults uint64        // pages that were copied because a vCPU wrote to them
	Stop   time.Duration // duration of a second stop, needed if the guest wrote too many pages; 0: no second stop
}

// Rebase tells the machine to share memory with a branch. The daemon sends the memory layer of the
// branch. While the machine runs, private mappings of the layer replace all pages that the machine
// has not written since the branch. Stats.Rebases is incremented when the rebase begins. After the
// rebase, only pages that differ from the branch's snapshot are private, so the next branch saves
// only these pages. The snapshot must exist as long as the machine exists. Thirty seconds after the
// branch, and also at another branch or at a Restore, the machine forgets which pages are
// unwritten. Afterwards it answers a Rebase with vm.ErrNotKept and changes nothing.
type Rebase struct {
	Serial uint64 // Branch.Serial
}

// RebaseResult describes a rebase.
type RebaseResult struct {
	Bytes    uint64        // number of replaced bytes; the other pages of the branch stay private
	Mappings uint64        // number of mappings of guest memory after the rebase
	Took     time.Duration // time taken, while the guest ran
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

// Merge replaces several layers of a disk with one layer of the same content. The daemon sends this
// layer. The replaced layers begin with number First, counted above the base image, and end just
// below the top. Merge is needed because each branch adds a layer to the disk, and this layer stays
// even if the branch is deleted.
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
