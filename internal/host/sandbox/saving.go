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

// branch is a branch in progress.
type branch struct {
	m       *Manager
	s       *Sandbox
	v       *liveVM
	op      string // the operation that branches, for errors
	req     BranchRequest
	start   time.Time
	lease   *store.Lease // of the snapshot from which the sandbox runs
	below   *store.Lease // of the snapshot below its memory layer
	line    int          // number of consecutive rebases, including that onto this branch
	whole   bool         // the layer holds all memory written since the sandbox was restored
	staging *store.Staging
	state   *os.File
	layer   *os.File
	lower   []*os.File // the sandbox's frozen tops for reading, oldest first, then the present one
	owners  []string   // of lower
	done    vmmproto.BranchResult
	figure  snapshot.Branch
	undo    cleanup.Stack
	calls   uint64 // number of calls to the sandbox when it was frozen; see package tally

	topBytes uint64 // disk usage of the present top
	fresh    uint64 // disk usage of the new top while empty
}

// stays reports whether the sandbox is at the branch afterwards. It is not after a transient branch
// or a suspension.
func (b *branch) stays() bool { return b.op == "branch" && !b.req.Transient }

// create makes a file of the snapshot. It is closed with the branch.
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

// guest describes the guest for children of the branch.
func (b *branch) guest() snapshot.Guest {
	g, i := b.lease.Manifest().Guest, b.s.Info()
	g.Defaults, g.Network, g.Limits, g.Strict = g.With(b.req.Defaults), i.Network.ForSnapshot(), i.Limits, i.Strict
	return g
}
