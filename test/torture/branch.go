package torture

import (
	"context"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmtest"
)

// maxExtents limits the number of extents in the memory maps of most branches. A branch with a
// lower limit must also copy gaps between written pages, so that they form one extent.
const maxExtents = 2048

// pending is a branch whose layer may still be being copied.
type pending struct {
	snap   *Snapshot
	base   *Snapshot // snapshot that the machine was based on before the branch
	layer  *os.File
	req    vmmproto.Branch
	result vmmproto.BranchResult
	copied vmmproto.Branched
}

// request returns a random request for a branch. Most branches are live. Some have a low limit for
// the number of extents or of write faults.
func (l *line) request() vmmproto.Branch {
	req := vmmproto.Branch{Mode: vm.BranchLive, MaxExtents: maxExtents}
	switch n := l.rig.rng.IntN(20); {
	case n >= 17:
		req.Mode = vm.BranchFull
	case n >= 12:
		req.Mode = vm.BranchDiff
	}
	if l.rig.rng.IntN(4) == 0 {
		req.MaxExtents = 256
	}
	if l.rig.rng.IntN(6) == 0 {
		req.StormFaults = 1 + l.rig.rng.Uint64N(64)
	}
	req.Keep = req.Mode != vm.BranchFull && l.rig.rng.IntN(4) > 0
	req.SinceRestore = req.Mode != vm.BranchFull && l.rig.rng.IntN(8) == 0
	return req
}

// live is like request, but the branch is always live.
func (l *line) live() vmmproto.Branch {
	req := l.request()
	req.Mode, req.Keep = vm.BranchLive, true
	return req
}

// begin branches v and returns when the guest runs again.
func (v *running) begin(ctx context.Context, req vmmproto.Branch) (*pending, error) {
	s, layer, err := v.newMarked(ctx, req.Mode.String())
	if err != nil {
		return nil, err
	}
	return v.branchTo(ctx, req, s, layer)
}

// newMarked makes the files of a snapshot of v, and sets a mark in the guest for this snapshot.
func (v *running) newMarked(ctx context.Context, kind string) (s *Snapshot, layer *os.File, err error) {
	if s, layer, err = v.newSnapshot(kind); err != nil {
		return nil, nil, err
	}
	s.at, err = v.setMark(ctx)
	return s, layer, err
}

// branchTo branches v into the files of s. It may run concurrently with another branch.
func (v *running) branchTo(ctx context.Context, req vmmproto.Branch, s *Snapshot, layer *os.File) (*pending, error) {
	top, err := v.rig.newTop(v.size)
	if err != nil {
		return nil, err
	}
	v.asking.Lock() // a branch must name the disk top that the previous branch has made
	defer v.asking.Unlock()
	frozen, err := vmtest.ForReading(v.files[len(v.files)-1])
	if err != nil {
		return nil, err
	}
	defer frozen.Close()
	p := &pending{snap: s, base: v.base, layer: layer, req: req}
	if req.SinceRestore {
		p.base = v.origin
	}
	p.result, err = v.Branch(ctx, req, vmmclient.BranchFiles{MemoryBytes: v.rig.shape.MemoryBytes, State: s.state,
		Layer: layer,
		Tops:  []*os.File{top}, Frozen: []*os.File{frozen}})
	if err != nil {
		return nil, fmt.Errorf("%s: %v branch: %w", v.name, req.Mode, err)
	}
	if p.result.Mode != req.Mode {
		return nil, fmt.Errorf("%s: %v branch fell back to %v: %s", v.name, req.Mode, p.result.Mode, p.result.Fallback)
	}
	s.disks, v.files = v.files, append(slices.Clone(v.files), top)
	return p, nil
}

// wait waits until the layer is complete. It may run concurrently with other requests to v.
func (v *running) wait(ctx context.Context, p *pending) (err error) {
	if p.req.Mode != vm.BranchLive {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	if p.copied, err = v.WaitCopied(ctx, p.result.Serial); err != nil {
		return fmt.Errorf("%s: copy live branch: %w", v.name, err)
	}
	return nil
}

// complete makes the snapshot of a branch whose layer is complete. It then rebases v onto the
// snapshot.
func (v *running) complete(p *pending) (*Snapshot, error) {
	if err := noHoles(p.layer, p.result.Save.Extents); err != nil {
		return nil, fmt.Errorf("%s: layer of %s: %w", v.name, p.snap.name, err)
	}
	base := p.base
	if p.req.Mode == vm.BranchFull {
		base = nil
	}
	p.snap.put(base, p.layer, p.result.Save.Extents)
	v.rig.rep.branched(p)
	bound := p.req.StormFaults
	if bound == 0 {
		bound = minDefaultStorm
	}
	if p.copied.Stop > 0 && p.copied.Faults < bound {
		return nil, fmt.Errorf("%s: branch %s stopped the guest after %d write faults, its bound is %d", v.name,
			p.snap.name, p.copied.Faults, bound)
	}
	return p.snap, v.rebase(p)
}

// noHoles checks that all extents of a layer are allocated. Children can then read the layer even
// if its file system is full.
func noHoles(layer *os.File, extents []vm.Extent) error {
	for _, e := range extents {
		hole, err := layer.Seek(int64(e.Offset), unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if uint64(hole) < e.Offset+e.Length {
			return fmt.Errorf("a hole at %#x in the extent of %d bytes at %#x", hole, e.Length, e.Offset)
		}
	}
	return nil
}

// minDefaultStorm is the minimum number of write faults of a storm, for a branch whose request has
// no limit.
const minDefaultStorm = 2048

// finish waits until the layer is complete and returns the snapshot.
func (v *running) finish(ctx context.Context, p *pending) (*Snapshot, error) {
	if err := v.wait(ctx, p); err != nil {
		return nil, err
	}
	return v.complete(p)
}

// branch branches v and then sets a new mark in v. A child that has the new mark contains pages of
// a later instant.
func (v *running) branch(ctx context.Context, req vmmproto.Branch) (*Snapshot, error) {
	p, err := v.begin(ctx, req)
	if err != nil {
		return nil, err
	}
	if _, err := v.setMark(ctx); err != nil { // a live branch is still being copied now
		return nil, err
	}
	return v.finish(ctx, p)
}
