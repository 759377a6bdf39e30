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
	durable "github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// defaultBranches is how many branches a daemon makes at once.
const defaultBranches = 4

// Bounds on what a branch makes others pay for.
const (
	vmmExtents    = 8192 // that the VMM may describe the dirty pages with: so many that it seldom fills gaps itself
	branchTimeout = 10 * time.Minute
)

// BranchRequest asks for a snapshot of a running sandbox.
type BranchRequest struct {
	Tag       string // empty: one is chosen
	Mode      vm.BranchMode
	ParentTag string // empty, or the tag that the caller takes for the snapshot the sandbox runs from
	NoWait    bool   // live: return when the sandbox runs again, before the snapshot is complete
	Transient bool   // the snapshot goes with the last sandbox that runs from it
	Template  bool   // the sandbox was there to build a template, which this is: the manifest says so
	Replace   bool   // a snapshot with the tag gives way to this one, unless sandboxes run from it

	Labels map[string]string // of the snapshot; bounded like those of sandboxes
}

// BranchResult is a new snapshot and what it cost. Branch of Info has the figures; of a branch that
// is still being written, those that are known.
type BranchResult struct {
	Info   store.Info
	Figure snapshot.Branch
	Shared uint64 // bytes of the sandbox's memory that became those of the snapshot
}

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

// Branch makes a snapshot of a sandbox, which runs on (or stays paused). Branches of one sandbox
// wait for each other; too many on the host, or of one owner, are refused with a *BusyError. Whatever fails, the
// sandbox runs on and can be branched again. When Branch returns, sandboxes can be forked from the
// snapshot, unless the request says not to wait; its flush to disk goes on in the background.
func (m *Manager) Branch(ctx context.Context, id string, req BranchRequest) (BranchResult, error) {
	start := time.Now()
	if _, err := m.Get(id); err != nil {
		return BranchResult{}, err
	}
	tag, err := branchTag(ctx, req.Tag, id, start)
	if err != nil {
		return BranchResult{}, err
	}
	req.Tag = tag
	if req.NoWait && req.Mode != vm.BranchLive {
		return BranchResult{}, &invalid.Error{Field: "wait", Reason: "only a live branch can be left to itself"}
	}
	if err := checkLabels(req.Labels); err != nil {
		return BranchResult{}, err
	}
	var r BranchResult
	err = m.With(ctx, id, func(h *Held) (err error) {
		r, err = h.branch(ctx, req, start)
		return err
	})
	return r, err
}

// branch is Branch, of a request that was checked and came in at start.
func (h *Held) branch(ctx context.Context, req BranchRequest, start time.Time) (BranchResult, error) {
	m, s := h.m, h.s
	if err := h.wake(ctx); err != nil {
		return BranchResult{}, err
	}
	done, err := m.enterBranches(ctx)
	if err != nil {
		return BranchResult{}, err
	}
	h.free.Add(done)
	b := &branch{m: m, s: s, v: s.live, op: "branch", req: req, start: start,
		figure: snapshot.Branch{Mode: req.Mode.String()}}
	if err := b.freeze(ctx); err != nil {
		b.undo.Run()
		err = s.explain("branch", b.v, err)
		m.cfg.Observer.BranchDone(BranchResult{Figure: b.figure}, err)
		return BranchResult{}, err
	}
	if !req.NoWait || b.done.Mode != vm.BranchLive {
		return b.finish(ctx)
	}
	parent := b.lease.Manifest()
	result := BranchResult{Figure: b.figure, Info: store.Info{
		Tag: req.Tag, Created: start, Writing: true, Parent: parent.Tag, Machine: parent.Machine, Guest: parent.Guest,
	}}
	rest := h.free // sandbox and places are held until the layer is complete
	h.free = cleanup.Stack{}
	complete := m.leaveUnwatched(req.Tag)
	m.background.Go(func() {
		defer complete() // when its places are free: who waited for it may branch next
		defer rest.Run()
		if _, err := b.finish(context.WithoutCancel(ctx)); err != nil {
			m.cfg.Log.Error("branch", "sandbox", s.id, "snapshot", req.Tag, "error", err)
			m.cfg.Store.ListFailed(req.Tag, err)
		}
	})
	return result, nil
}

// enterBranches takes one of the host's places for branches, for the owner that ctx names, or returns
// a *BusyError. The caller holds the lock of the sandbox: what only waits for that takes no place.
func (m *Manager) enterBranches(ctx context.Context) (leave func(), err error) {
	_, total := m.branches.Count()
	leave, err = m.branches.Enter(FairShare(ownerOf(ctx).name, total))
	if full := (*gate.FullError)(nil); errors.As(err, &full) {
		return nil, &BusyError{What: "branches", Limit: full.Limit, Owner: full.Key}
	}
	return leave, err
}

// branchTag returns the tag of a branch: a checked one, or one that is chosen where it is empty.
func branchTag(ctx context.Context, tag, id string, at time.Time) (string, error) {
	p := PrefixOf(ctx)
	switch {
	case tag != "":
	case p != "":
		tag = p.tags() + snapshot.NewID()[:16]
	default:
		tag = fmt.Sprintf("branch-%s-%d-%s", id, at.Unix(), snapshot.NewID()[:4])
	}
	if err := snapshot.CheckTag(tag); err != nil {
		return "", &invalid.Error{Field: "tag", Reason: err.Error()}
	}
	return tag, Within(ctx, p.HasTag(tag), "tag: %q", tag)
}

// freeze takes state, memory and disk of one instant. After it the sandbox runs on.
func (b *branch) freeze(ctx context.Context) error {
	rec, v, err := b.s.withVM(b.op)
	// an earlier branch could not write down what became of it
	if err == nil && (rec.Pending != nil || rec.Rebasing != nil) {
		if _, err = b.s.settle(context.Background(), v); err == nil {
			rec, v, err = b.s.withVM(b.op)
		}
	}
	if err == nil {
		err = v.kept
	}
	if err != nil {
		return err
	}
	lease, err := b.m.leased(b.s, b.op, v)
	if err != nil {
		return err
	}
	if b.req.ParentTag != "" && b.req.ParentTag != rec.SnapshotTag && b.req.ParentTag != rec.Tag() {
		return invalid.Errorf("parent_tag", "%q: the sandbox runs from %q", b.req.ParentTag, rec.Tag())
	}
	if b.lease, err = b.m.cfg.Store.Acquire(lease.Manifest().Tag); err != nil {
		return err
	}
	b.undo.Add(b.lease.Release)
	b.chooseBelow(&rec)
	stage := b.m.cfg.Store.Stage
	if b.req.Replace {
		stage = b.m.cfg.Store.StageOver
	}
	if b.staging, err = stage(b.req.Tag); err != nil {
		return err
	}
	b.undo.Add(b.staging.Discard)
	files := vmmclient.BranchFiles{MemoryBytes: b.lease.Manifest().Machine.MemoryBytes}
	if b.state, err = b.create(snapshot.StateFile); err != nil {
		return err
	}
	files.State = b.state
	if b.layer, err = b.create(snapshot.MemoryLayerFile); err != nil {
		return err
	}
	files.Layer = b.layer
	var top *os.File
	if b.lease.Manifest().Disk != nil {
		if top, err = b.prepareTop(ctx, rec); err != nil {
			return err
		}
		defer top.Close()
		files.Tops, files.Frozen = []*os.File{top}, b.lower[len(b.lower)-1:]
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), branchTimeout) // its outcome must be known
	defer cancel()
	b.calls = b.s.since.Calls()
	b.done, err = b.ask(ctx, files)
	b.figure = snapshot.Branch{SandboxID: b.s.id, Mode: b.done.Mode.String(), Template: b.req.Template,
		Fallback: b.done.Fallback,
		Pause:    snapshot.Micros(b.done.Pause), DirtyBytes: b.done.Save.DirtyBytes, After: rec.At, Labels: b.req.Labels}
	if err != nil && !errors.Is(err, vmmclient.ErrNoAnswer) {
		err = errors.Join(err, b.refuseKeeper(top))
	}
	if _, settled := b.s.settle(context.Background(), b.v); settled != nil {
		return errors.Join(err, settled)
	}
	if err != nil {
		return fmt.Errorf("%s sandbox %q: %w", b.op, b.s.id, err)
	}
	return nil
}

// copyPoll is how often a VMM is asked again that still copies for a daemon that has died.
const copyPoll = 50 * time.Millisecond

// ask lets the VMM branch. One that still copies a live branch of an earlier daemon refuses, which
// changes nothing; the copying is bounded by what the guest had written.
func (b *branch) ask(ctx context.Context, files vmmclient.BranchFiles) (vmmproto.BranchResult, error) {
	for {
		done, err := b.v.vmm.Branch(ctx, vmmproto.Branch{Mode: b.req.Mode, MaxExtents: vmmExtents,
			Keep: b.keeps(), SinceRestore: b.whole}, files)
		if !errors.Is(err, vm.ErrCopying) {
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

// prepareTop makes the next top of the sandbox and writes down that the VMM may be using it from
// now on.
func (b *branch) prepareTop(ctx context.Context, rec ledger.Record) (*os.File, error) {
	s := b.s
	for _, f := range append(slices.Clone(rec.Frozen), durable.FrozenTop{Name: rec.Top, Owner: b.staging.ID()}) {
		file, err := os.Open(filepath.Join(s.data, f.Name))
		if err != nil {
			return nil, fmt.Errorf("open a disk top of sandbox %q: %w", rec.ID, err)
		}
		b.undo.Add(func() { file.Close() })
		b.lower, b.owners = append(b.lower, file), append(b.owners, f.Owner)
	}
	stats, err := b.v.vmm.Stats(ctx)
	if err != nil {
		return nil, err
	}
	name := rec.NextTop()
	top, err := chain.NewTop(filepath.Join(s.data, name), b.lease.Manifest().Disk.SizeBytes, b.m.cfg.NewTop)
	if err != nil {
		return nil, err
	}
	err = s.update(func(r *ledger.Record) {
		r.Tops++
		r.Pending = &durable.PendingTop{Name: name, Owner: b.staging.ID(), Swaps: stats.TopSwaps}
	})
	if err != nil {
		top.Close()
		return nil, errors.Join(err, os.Remove(filepath.Join(s.data, name)))
	}
	b.topBytes, b.fresh = diskBytes(filepath.Join(s.data, rec.Top)), diskBytes(top.Name())
	return top, nil
}

// finish completes the memory layer and publishes the snapshot.
func (b *branch) finish(ctx context.Context) (result BranchResult, err error) {
	defer b.undo.Run()
	defer func() {
		err = b.s.explain(b.op, b.v, err)
		result.Figure = b.figure
		b.m.cfg.Observer.BranchDone(result, err)
	}()
	if b.done.Mode == vm.BranchLive {
		wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), branchTimeout)
		defer cancel()
		copied, err := b.v.vmm.WaitCopied(wait, b.done.Serial)
		b.figure.Faults, b.figure.Stop = copied.Faults, snapshot.Micros(copied.Stop)
		if err != nil {
			return result, fmt.Errorf("%s sandbox %q: copy its memory: %w", b.op, b.s.id, err)
		}
	}
	extents, memory := b.done.Save.Extents, []snapshot.File(nil)
	if b.done.Mode != vm.BranchFull {
		extents, memory, err = b.memory(ctx, extents)
	}
	if err == nil {
		err = b.refuseWriters()
	}
	if err != nil {
		return result, fmt.Errorf("%s sandbox %q: complete the layers: %w", b.op, b.s.id, err)
	}
	b.staging.Inherit(b.below)
	parent := b.lease.Manifest()
	b.figure.Ready = snapshot.Micros(time.Since(b.start))
	guest := parent.Guest
	info := b.s.Info()
	guest.Network, guest.Limits, guest.Strict = info.Network.ForSnapshot(), info.Limits, info.Strict
	m := &snapshot.Manifest{
		Parent: &snapshot.Ref{ID: parent.ID, Tag: parent.Tag}, Machine: parent.Machine, Guest: guest,
		Memory: memory, Branch: &b.figure, Transient: b.req.Transient,
	}
	disk, err := b.disk(m)
	if err != nil {
		return result, fmt.Errorf("%s sandbox %q: complete the disk: %w", b.op, b.s.id, err)
	}
	// Before it is published: a snapshot that exists must not be answered with an error, nor be
	// missing in the line of its sandbox because the daemon died. An ID that no snapshot gets names
	// nothing.
	var at *snapshot.Ref // before
	err = b.s.update(func(r *ledger.Record) {
		r.Count++
		r.Branches = append(b.m.reachable(r.Branches), b.staging.ID())
		if at = r.At; b.stays() {
			r.At = &snapshot.Ref{ID: b.staging.ID(), Tag: b.req.Tag}
		}
	})
	if err != nil {
		return result, err
	}
	if b.stays() { // before it is published: who sees it must see that nothing has changed since
		b.s.since.Mark(b.calls)
	}
	if result.Info, err = b.staging.Publish(m, extents, disk); err != nil {
		b.s.since.Forget()
		err = errors.Join(err, b.s.update(func(r *ledger.Record) {
			r.Count--
			r.Branches, r.At = r.Branches[:len(r.Branches)-1], at
		}))
		return result, err
	}
	b.figure.Ready = snapshot.Micros(time.Since(b.start))
	if b.done.Kept {
		result.Shared = b.rebase(ctx)
	}
	b.countChanges(result.Shared)
	if io := info.Limits; io.IOBytesPerSecond != 0 || io.IOOpsPerSecond != 0 {
		b.hurry()
	}
	return result, err
}

// memory completes the memory layer over the layers that the snapshot inherits. Whoever asked may
// have gone; it ends when the sandbox is deleted, and when it has taken too long.
func (b *branch) memory(ctx context.Context, extents []vm.Extent) ([]vm.Extent, []snapshot.File, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), branchTimeout)
	defer cancel()
	defer context.AfterFunc(b.v.calls, cancel)()
	return chain.Memory(ctx, b.layer, extents, b.below)
}

// hurry brings the published snapshot to disk as fast as that is, although the VM that wrote its
// disk layer has a lower rate: other snapshots wait for it.
func (b *branch) hurry() {
	done := b.v.vmm.Hurry()
	b.m.background.Go(func() {
		defer done()
		_ = b.m.cfg.Store.WaitFlushed(context.Background(), b.req.Tag) // the store says what has failed
	})
}
