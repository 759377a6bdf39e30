package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/memlayer"
	"github.com/forkd/forkd/internal/snapshot"
	"github.com/forkd/forkd/internal/store"
	"github.com/forkd/forkd/internal/vmm/vmmclient"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// defaultBranches is how many branches a daemon makes at once.
const defaultBranches = 4

// Bounds on what a branch makes others pay for.
const (
	vmmExtents    = 8192 // that the VMM may describe the dirty pages with: so many that it seldom fills gaps itself
	maxExtents    = 256  // of a snapshot's whole map: each costs every fork one mmap
	maxDepth      = 32   // layers of a snapshot; the next one is made self-contained while the sandbox runs
	branchTimeout = 10 * time.Minute
)

// BranchRequest asks for a snapshot of a running sandbox.
type BranchRequest struct {
	Tag       string // empty: one is chosen
	Mode      vmmproto.BranchMode
	ParentTag string // empty, or the tag that the caller takes for the snapshot the sandbox runs from
	NoWait    bool   // live: return when the sandbox runs again, before the snapshot is complete
	Transient bool   // the snapshot goes with the last sandbox that runs from it
}

// BranchResult is a new snapshot and what it cost. Branch of Info has the figures; of a branch that is still being
// written, those that are known.
type BranchResult struct {
	Info   store.Info
	Figure snapshot.Branch
}

// branch is one on its way.
type branch struct {
	m       *Manager
	s       *Sandbox
	req     BranchRequest
	start   time.Time
	lease   *store.Lease // of the snapshot that the sandbox runs from
	staging *store.Staging
	layer   *os.File
	lower   []*os.File // the sandbox's frozen tops, oldest first, the present one last
	owners  []string   // of these
	done    vmmproto.BranchResult
	figure  snapshot.Branch
	undo    cleanup.Stack
}

// Branch makes a snapshot of a sandbox, which runs on (or stays paused). Branches of one sandbox wait for each other; too
// many on the host are refused with a *BusyError. Whatever fails, the sandbox runs on and can be branched again. When
// Branch returns, sandboxes can be forked from the snapshot, unless the request says not to wait; its flush to disk goes
// on in the background.
func (m *Manager) Branch(ctx context.Context, id string, req BranchRequest) (BranchResult, error) {
	start := time.Now()
	if _, err := m.Get(id); err != nil {
		return BranchResult{}, err
	}
	if req.Tag == "" {
		req.Tag = fmt.Sprintf("branch-%s-%d-%s", id, start.Unix(), snapshot.NewID()[:4])
	}
	if err := snapshot.CheckTag(req.Tag); err != nil {
		return BranchResult{}, &InvalidError{"tag", err.Error()}
	}
	if req.NoWait && req.Mode != vmmproto.BranchLive {
		return BranchResult{}, &InvalidError{"wait", "only a live branch can be left to itself"}
	}
	select {
	case m.branches <- struct{}{}:
	default:
		return BranchResult{}, &BusyError{What: "branches", Limit: cap(m.branches)}
	}
	var free cleanup.Stack
	defer free.Run()
	free.Add(func() { <-m.branches })
	s, unlock, err := m.lockAwake(ctx, id)
	if err != nil {
		return BranchResult{}, err
	}
	free.Add(unlock)
	b := &branch{m: m, s: s, req: req, start: start, figure: snapshot.Branch{Mode: req.Mode.String()}}
	if err := b.freeze(ctx); err != nil {
		b.undo.Run()
		err = s.ended("branch", err)
		m.cfg.Observer.BranchDone(BranchResult{Figure: b.figure}, err)
		return BranchResult{}, err
	}
	if !req.NoWait || b.done.Mode != vmmproto.BranchLive {
		return b.finish(ctx)
	}
	parent := b.lease.Manifest()
	result := BranchResult{Figure: b.figure, Info: store.Info{
		Tag: req.Tag, Created: start, Writing: true, Parent: parent.Tag, Machine: parent.Machine, Guest: parent.Guest,
	}}
	rest := free // the places are held until the layer is complete
	free = cleanup.Stack{}
	m.background.Go(func() {
		defer rest.Run()
		if _, err := b.finish(context.WithoutCancel(ctx)); err != nil {
			m.cfg.Log.Error("branch", "sandbox", id, "snapshot", req.Tag, "error", err)
			m.cfg.Store.Failed(req.Tag, err)
		}
	})
	return result, nil
}

// freeze takes state, memory and disk of one instant. After it the sandbox runs on.
func (b *branch) freeze(ctx context.Context) error {
	rec, lease, err := b.s.branchable()
	if err == nil && rec.Pending != nil { // an earlier branch could not write down what became of its top
		if _, err = b.m.settle(b.s); err == nil {
			rec, lease, err = b.s.branchable()
		}
	}
	if err != nil {
		return err
	}
	if b.req.ParentTag != "" && b.req.ParentTag != rec.SnapshotTag && b.req.ParentTag != rec.tag() {
		return &InvalidError{"parent_tag", fmt.Sprintf("%q: the sandbox runs from %q", b.req.ParentTag, rec.tag())}
	}
	if b.lease, err = b.m.cfg.Store.Acquire(lease.Manifest().Tag); err != nil {
		return err
	}
	b.undo.Add(b.lease.Release)
	if b.staging, err = b.m.cfg.Store.Stage(b.req.Tag); err != nil {
		return err
	}
	b.undo.Add(b.staging.Discard)
	files := vmmclient.BranchFiles{}
	if files.State, err = b.create(snapshot.StateFile); err != nil {
		return err
	}
	if b.layer, err = b.create(snapshot.MemoryLayerFile); err != nil {
		return err
	}
	files.Layer = b.layer
	if b.lease.Manifest().Disk != nil {
		top, err := b.prepareTop(ctx, rec)
		if err != nil {
			return err
		}
		defer top.Close()
		files.Tops = []*os.File{top}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), branchTimeout) // its outcome must be known
	defer cancel()
	b.done, err = b.ask(ctx, files)
	b.figure = snapshot.Branch{SandboxID: b.s.record.ID, Mode: b.done.Mode.String(), Fallback: b.done.Fallback,
		PauseUS: b.done.PauseNanos / 1000, DirtyBytes: b.done.Save.DirtyBytes}
	if _, settled := b.m.settle(b.s); settled != nil {
		return errors.Join(err, settled)
	}
	if err != nil {
		return fmt.Errorf("branch sandbox %q: %w", b.s.record.ID, fromVMM(err))
	}
	return nil
}

// copyPoll is how often a VMM is asked again that still copies for a daemon that has died.
const copyPoll = 50 * time.Millisecond

// ask lets the VMM branch. One that still copies a live branch of an earlier daemon refuses, which changes nothing; the
// copying is bounded by what the guest had written.
func (b *branch) ask(ctx context.Context, files vmmclient.BranchFiles) (vmmproto.BranchResult, error) {
	for {
		done, err := b.s.vmm.Branch(ctx, vmmproto.Branch{Mode: b.req.Mode, MaxExtents: vmmExtents}, files)
		if !stillCopying(err) {
			return done, err
		}
		select {
		case <-time.After(copyPoll):
		case <-ctx.Done():
			return done, err
		}
	}
}

// create makes a file of the snapshot that is closed with the branch.
func (b *branch) create(name string) (*os.File, error) {
	f, err := b.staging.Create(name)
	if err == nil {
		b.undo.Add(func() { f.Close() })
	}
	return f, err
}

// prepareTop makes the next top of the sandbox and writes down that the VMM may be using it from now on.
func (b *branch) prepareTop(ctx context.Context, rec record) (*os.File, error) {
	s := b.s
	for _, f := range append(slices.Clone(rec.Frozen), frozenTop{rec.Top, b.staging.ID()}) {
		file, err := os.Open(filepath.Join(s.data, f.Name))
		if err != nil {
			return nil, fmt.Errorf("open a disk top of sandbox %q: %w", rec.ID, err)
		}
		b.undo.Add(func() { file.Close() })
		b.lower, b.owners = append(b.lower, file), append(b.owners, f.Owner)
	}
	stats, err := s.vmm.Stats(ctx)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%s.%d", topName, rec.Tops+1)
	top, err := b.m.newTop(filepath.Join(s.data, name), b.lease.Manifest().Disk.SizeBytes)
	if err != nil {
		return nil, err
	}
	err = s.update(func(r *record) {
		r.Tops++
		r.Pending = &pendingTop{Name: name, Owner: b.staging.ID(), Swaps: stats.TopSwaps}
	})
	if err != nil {
		top.Close()
		return nil, errors.Join(err, os.Remove(filepath.Join(s.data, name)))
	}
	return top, nil
}

// settle finds out whether the VMM has taken a new top, and writes that down. It also returns whether the VM is paused.
func (m *Manager) settle(s *Sandbox) (paused bool, err error) {
	stats, err := s.vmm.Stats(context.Background())
	if s.heard(err) != nil {
		return false, fmt.Errorf("ask the VMM of sandbox %q for its disk: %w", s.record.ID, err)
	}
	s.mu.Lock()
	pending := s.record.Pending
	s.mu.Unlock()
	if pending == nil {
		return stats.Paused, nil
	}
	swapped := stats.TopSwaps > pending.Swaps
	err = s.update(func(r *record) {
		r.Pending = nil
		if swapped {
			r.Frozen = append(slices.Clone(r.Frozen), frozenTop{r.Top, pending.Owner})
			r.Top = pending.Name
		}
	})
	if err == nil && !swapped {
		os.Remove(filepath.Join(s.data, pending.Name)) // an empty file that nobody uses
	}
	return stats.Paused, err
}

// finish completes the memory layer and publishes the snapshot.
func (b *branch) finish(ctx context.Context) (result BranchResult, err error) {
	defer b.undo.Run()
	defer func() {
		err = b.s.ended("branch", err)
		b.figure.ReadyUS = uint64(time.Since(b.start).Microseconds())
		result.Figure = b.figure
		b.m.cfg.Observer.BranchDone(result, err)
	}()
	if b.done.Mode == vmmproto.BranchLive {
		wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), branchTimeout)
		defer cancel()
		copied, err := b.s.vmm.WaitCopied(wait, b.done.Serial)
		b.figure.Faults, b.figure.StopUS = copied.Faults, copied.StopNanos/1000
		if err != nil {
			return result, fmt.Errorf("branch sandbox %q: copy its memory: %w", b.s.record.ID, fromVMM(err))
		}
	}
	extents, memory, err := b.memory()
	if err != nil {
		return result, fmt.Errorf("branch sandbox %q: complete the memory layer: %w", b.s.record.ID, err)
	}
	parent := b.lease.Manifest()
	b.figure.ReadyUS = uint64(time.Since(b.start).Microseconds())
	m := &snapshot.Manifest{
		Parent: &snapshot.Ref{ID: parent.ID, Tag: parent.Tag}, Machine: parent.Machine, Guest: parent.Guest,
		Memory: memory, Branch: &b.figure, Transient: b.req.Transient,
	}
	disk, err := b.disk(m)
	if err != nil {
		return result, fmt.Errorf("branch sandbox %q: complete the disk: %w", b.s.record.ID, err)
	}
	// Before it is published: a snapshot that exists must not be answered with an error, nor be missing in the line of
	// its sandbox because the daemon died. An ID that no snapshot gets names nothing.
	err = b.s.update(func(r *record) {
		r.Count++
		r.Branches = append(slices.Clone(r.Branches), b.staging.ID())
	})
	if err != nil {
		return result, err
	}
	if result.Info, err = b.staging.PublishHot(m, extents, disk); err != nil {
		err = errors.Join(err, b.s.update(func(r *record) {
			r.Count--
			r.Branches = r.Branches[:len(r.Branches)-1]
		}))
	}
	return result, err
}

// memory bounds the snapshot's map and returns it with the layers that it inherits.
func (b *branch) memory() ([]memlayer.Extent, []snapshot.File, error) {
	own := b.done.Save.Extents
	if b.done.Mode == vmmproto.BranchFull {
		return own, nil, nil
	}
	lower := b.lease.Extents()
	depth := uint32(len(b.lease.Layers()))
	for i := range own {
		own[i].Layer = depth
	}
	if depth >= maxDepth {
		extents, err := flatten(b.layer, depth, memlayer.Overlay(lower, own), b.lease.Layers())
		return extents, nil, err
	}
	fill := memlayer.Coalesce(lower, own, maxExtents)
	buf := make([]byte, copyBuffer)
	for _, span := range fill {
		for _, e := range memlayer.Slice(lower, span) {
			if err := copyExtent(b.layer, b.lease.Layers()[e.Layer], e, buf); err != nil {
				return nil, nil, err
			}
		}
	}
	return memlayer.Overlay(lower, memlayer.Fill(own, fill)), slices.Clone(b.lease.Manifest().Memory), nil
}
