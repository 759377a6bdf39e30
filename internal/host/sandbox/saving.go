package sandbox

import (
	"os"
	"time"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// branch is one on its way.
type branch struct {
	m       *Manager
	s       *Sandbox
	v       *liveVM
	op      string // that the branch is for, in errors
	req     BranchRequest
	start   time.Time
	lease   *store.Lease // of the snapshot that the sandbox runs from
	below   *store.Lease // of that which its memory is written over
	line    int          // rebases in a row that this branch would be the last of
	whole   bool         // it takes all memory written since the sandbox was restored
	staging *store.Staging
	state   *os.File
	layer   *os.File
	lower   []*os.File // the sandbox's frozen tops for reading, oldest first, the present one last
	owners  []string   // of these
	done    vmmproto.BranchResult
	figure  snapshot.Branch
	undo    cleanup.Stack
	calls   uint64 // that the sandbox had had when it was frozen; see package tally

	topBytes uint64 // that the present top takes on disk
	fresh    uint64 // that the new one takes while it is empty
}

// stays reports whether the branch becomes the snapshot that the sandbox is at. One that goes with
// others, or is a suspended state, does not.
func (b *branch) stays() bool { return b.op == "branch" && !b.req.Transient }

// create makes a file of the snapshot that is closed with the branch.
func (b *branch) create(name string) (*os.File, error) {
	f, err := b.staging.Create(name)
	if err == nil {
		b.undo.Add(func() { f.Close() })
	}
	return f, err
}

// createMemory makes the files of state and memory.
func (b *branch) createMemory(files *vmmclient.BranchFiles) (err error) {
	if b.state, err = b.create(snapshot.StateFile); err != nil {
		return err
	}
	if b.layer, err = b.create(snapshot.MemoryLayerFile); err != nil {
		return err
	}
	files.State, files.Layer = b.state, b.layer
	return nil
}

// guest describes the guest as children of the branch find it.
func (b *branch) guest() snapshot.Guest {
	guest, info := b.lease.Manifest().Guest, b.s.Info()
	guest.Network, guest.Limits, guest.Strict = info.Network.ForSnapshot(), info.Limits, info.Strict
	return guest
}
