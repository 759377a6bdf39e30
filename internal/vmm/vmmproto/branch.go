package vmmproto

import (
	"errors"
	"fmt"

	"github.com/forkd/forkd/internal/wire"
)

// BranchMode is how a branch takes the memory of a running machine.
type BranchMode uint8

// The branch modes.
const (
	BranchLive BranchMode = iota + 1 // dirty pages are frozen while stopped and copied while the guest runs
	BranchDiff                       // dirty pages are copied while stopped
	BranchFull                       // all pages are copied while stopped: the layer needs no layers below it
)

// String returns the mode as the API spells it.
func (m BranchMode) String() string {
	switch m {
	case BranchLive:
		return "live"
	case BranchDiff:
		return "diff"
	case BranchFull:
		return "full"
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// Branch saves a machine while it runs: its state, the memory it has written over its layers, and its disks, whose tops
// become layers below the donated new ones. All of them are of one instant. A paused machine stays paused.
type Branch struct {
	Mode       BranchMode
	MaxExtents uint32 // as in Save
	Tops       uint32 // donated new tops, one for every writable disk
	Serial     uint64 // returned in Branched, which may come from a branch that an earlier daemon began

	// StormFaults is how many write faults a live branch serves before it stops the guest until the rest is copied;
	// 0: as long as most pages are captured without one.
	StormFaults uint64
}

// BranchResult describes a branch when the guest runs again. The layer of a live branch is complete only when
// Branched says so.
type BranchResult struct {
	Save       SaveResult
	Serial     uint64     // of the Branch
	Mode       BranchMode // how it was done: a live branch falls back to diff where the host cannot do it
	Fallback   string     // why, if so
	PauseNanos uint64     // from the request to stop the vCPUs until they entered again
	ArmNanos   uint64     // of these, write-protecting (live) or copying
}

// Branched says that the layer of a live branch is complete, or never will be.
type Branched struct {
	Serial    uint64 // of the Branch
	Error     string // empty: the layer is complete
	CopyNanos uint64 // from the guest's resumption
	Faults    uint64 // pages that were copied because a vCPU wrote them
	StopNanos uint64 // time for which the guest was stopped again because it wrote faster than could be copied
}

// Merge puts one donated layer in the place of those that a writable disk has from First, counted above the base image, up
// to its top. It has their content: branches add a layer each, and nobody needs them one by one.
type Merge struct {
	Disk  uint32
	First uint32
}

// Append encodes m.
func (m *Merge) Append(w *wire.Writer) {
	w.U32(m.Disk)
	w.U32(m.First)
}

// Parse decodes m.
func (m *Merge) Parse(r *wire.Reader) error {
	*m = Merge{Disk: r.U32(), First: r.U32()}
	return r.Err()
}

// Append encodes m.
func (m *Branch) Append(w *wire.Writer) {
	w.U8(uint8(m.Mode))
	w.U32(m.MaxExtents)
	w.U32(m.Tops)
	w.U64(m.Serial)
	w.U64(m.StormFaults)
}

// Parse decodes m.
func (m *Branch) Parse(r *wire.Reader) error {
	*m = Branch{Mode: BranchMode(r.U8()), MaxExtents: r.U32(), Tops: r.U32(), Serial: r.U64(), StormFaults: r.U64()}
	if m.Mode < BranchLive || m.Mode > BranchFull {
		return errors.Join(fmt.Errorf("unknown branch mode %d", uint8(m.Mode)), r.Err())
	}
	return r.Err()
}

// Append encodes m.
func (m *BranchResult) Append(w *wire.Writer) {
	m.Save.Append(w)
	w.U64(m.Serial)
	w.U8(uint8(m.Mode))
	w.String(m.Fallback)
	w.U64(m.PauseNanos)
	w.U64(m.ArmNanos)
}

// Parse decodes m.
func (m *BranchResult) Parse(r *wire.Reader) error {
	if err := m.Save.Parse(r); err != nil {
		return err
	}
	m.Serial, m.Mode, m.Fallback = r.U64(), BranchMode(r.U8()), r.String()
	m.PauseNanos, m.ArmNanos = r.U64(), r.U64()
	return r.Err()
}

// Append encodes m.
func (m *Branched) Append(w *wire.Writer) {
	w.U64(m.Serial)
	w.String(m.Error)
	w.U64(m.CopyNanos)
	w.U64(m.Faults)
	w.U64(m.StopNanos)
}

// Parse decodes m.
func (m *Branched) Parse(r *wire.Reader) error {
	*m = Branched{Serial: r.U64(), Error: r.String(), CopyNanos: r.U64(), Faults: r.U64(), StopNanos: r.U64()}
	return r.Err()
}
