package sandbox

import (
	"os"
	"time"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// branch is a branch that is being made.
type branch struct {
	m       *Manager
	s       *Sandbox
	v       *liveVM
	op      string // the operation that makes the snapshot, for errors
	req     BranchRequest
	start   time.Time
	lease   *store.Lease // lease of the snapshot from which the sandbox runs
	below   *store.Lease // lease of the snapshot below the branch's memory layer
	line    int          // number of consecutive rebases, including the one onto this branch
	secret  bool         // the snapshot is encrypted
	whole   bool         // the layer holds all memory that was written since the sandbox was restored
	staging *store.Staging
	state   *os.File
	layer   *os.File
	lower   []*os.File // the sandbox's tops, open for reading: frozen tops, oldest first, and then the present top
	owners  []string   // IDs of the owners of the layers in lower
	tops    mounts.Tops
	done    vmmproto.BranchResult
	figure  snapshot.Branch
	undo    cleanup.Stack
	calls   uint64 // number of calls to the sandbox up to the freeze, see package tally

	topBytes uint64 // bytes that the present top takes on disk
	fresh    uint64 // bytes that the new, empty top takes on disk
}

// stays reports whether the branch becomes the sandbox's latest branch in Info.At. The result is
// false for a transient branch and for a suspension.
func (b *branch) stays() bool { return b.op == "branch" && !b.req.Transient }

// create creates a file of the snapshot. The file is closed when the branch ends.
func (b *branch) create(name string) (*os.File, error) {
	f, err := b.staging.Create(name)
	b.undo.Add(func() { f.Close() }) // f may be nil; Close then returns an error
	return f, err
}

// createMemory creates the files for state and memory.
func (b *branch) createMemory(files *vmmclient.BranchFiles) (err error) {
	if b.state, err = b.create(snapshot.StateFile); err == nil {
		b.layer, err = b.create(snapshot.MemoryLayerFile)
	}
	files.State, files.Layer = b.state, b.layer
	return err
}

// guest returns the manifest's description of the guest. Children inherit the values in it.
func (b *branch) guest() snapshot.Guest {
	g, i := b.lease.Manifest().Guest, b.s.Info()
	g.Defaults, g.Network, g.Limits, g.Strict = g.With(b.req.Defaults), i.Network.ForSnapshot(), i.Limits, i.Strict
	g.Hooks = i.Hooks
	return g
}
