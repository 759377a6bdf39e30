package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmtest"
)

// rebase rebases v onto its branch p. If another operation on v has followed the branch, the VMM
// refuses the rebase, and v keeps its layers. Before that, rebase asks for a rebase onto an earlier
// branch of v, which the VMM must refuse: v may have written since then.
func (v *running) rebase(p *pending) error {
	if !p.result.Kept {
		return nil
	}
	v.asking.Lock() // a branch that is requested during the rebase would be based on the old layers
	defer v.asking.Unlock()
	if v.rebased != nil {
		if _, err := v.rebaseOnto(v.rebased); !errors.Is(err, vm.ErrNotKept) {
			return fmt.Errorf("%s: rebase onto %s after branch %s: %v, want %v",
				v.name, v.rebased.snap.name, p.snap.name, err, vm.ErrNotKept)
		}
		v.rig.rep.Count(&v.rig.rep.Outdated)
	}
	v.rebased = p
	result, err := v.rebaseOnto(p)
	if errors.Is(err, vm.ErrNotKept) {
		v.rig.rep.Count(&v.rig.rep.NotKept)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: rebase onto %s: %w", v.name, p.snap.name, err)
	}
	v.base = p.snap
	v.rig.rep.rebased(result)
	return nil
}

// rebaseOnto asks the VMM for a rebase onto the branch p.
func (v *running) rebaseOnto(p *pending) (result vmmproto.RebaseResult, err error) {
	layer, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", p.layer.Fd())) // opens the layer for reading only
	if err != nil {
		return result, err
	}
	defer layer.Close()
	ctx, cancel := context.WithTimeout(context.Background(), stepLimit)
	defer cancel()
	return v.Rebase(ctx, p.result.Serial, layer)
}

// Parameters of a long line.
const (
	lineRollback = 7 // number of branches after which the source is rolled back to one of them
	lineLayers   = 9 // if a branch has more memory layers above the origin, it holds all writes since the origin
)

// long() branches one running source many times, and rebases the source after each branch. So every
// snapshot holds only the pages written since the previous snapshot. Meanwhile long() drops every
// second snapshot, and sometimes rolls the source back to an earlier snapshot. In the end, all
// remaining snapshots must have the right content.
func (l *line) long(ctx context.Context) error {
	v := l.source
	var line []*Snapshot
	for k := range l.rig.cfg.Line {
		words := []string{"hot", "1"}
		if k%5 == 0 {
			words[1] = "64"
		}
		if _, err := v.ask(ctx, words...); err != nil {
			return err
		}
		req := vmmproto.Branch{Mode: vm.BranchLive, MaxExtents: maxExtents, Keep: true}
		if l.rig.rng.IntN(3) == 0 {
			req.Mode = vm.BranchDiff
		}
		req.SinceRestore = len(v.base.layers) >= len(v.origin.layers)+lineLayers
		s, err := v.branch(ctx, req)
		if err != nil {
			return err
		}
		line = append(line, s)
		if k%2 == 1 {
			line[k-1] = nil // its files are closed when nothing uses them any more
		}
		if k%lineRollback == lineRollback-1 {
			if err := l.rollInto(ctx, line); err != nil {
				return err
			}
		}
	}
	if err := l.verifySource(ctx); err != nil {
		return err
	}
	if err := v.Pause(ctx); err != nil {
		return err
	}
	for k, s := range line {
		if s == nil {
			continue
		}
		if err := l.rig.check(ctx, s, "link"); err != nil {
			return fmt.Errorf("branch %d of the line: %w", k+1, err)
		}
		l.last = s
	}
	return v.Resume(ctx)
}

// merge replaces disk layers of the running source, from a random layer on, by one layer with their
// content. Snapshots keep the old layers, but branches of the source have the merged layer.
func (l *line) merge(ctx context.Context) error {
	v := l.source
	for len(v.files) < leastToMerge {
		if err := l.plain(ctx); err != nil {
			return err
		}
	}
	top := len(v.files) - 1
	first := 1 + l.rig.rng.IntN(top-2) // at least two layers are merged; files[0] is the base image
	merged, err := l.rig.file()
	if err != nil {
		return err
	}
	if err := disklayer.Merge(ctx, merged, v.files[first:top]); err != nil {
		return err
	}
	own, err := vmtest.ForReading(merged)
	if err != nil {
		return err
	}
	defer own.Close()
	if err := v.Merge(ctx, vmmproto.Merge{First: uint32(first - 1)}, own); err != nil {
		return fmt.Errorf("%s: merge %d disk layers: %w", v.name, top-first, err)
	}
	v.files = slices.Concat(v.files[:first], []*os.File{merged, v.files[top]})
	l.rig.rep.Count(&l.rig.rep.Merges)
	if err := l.verifySource(ctx); err != nil {
		return err
	}
	return l.plain(ctx)
}

// leastToMerge is the number of files of a disk with two layers between the base image and the top.
const leastToMerge = 4

// rollInto rolls the source back to one of the branches in the given line.
func (l *line) rollInto(ctx context.Context, line []*Snapshot) error {
	to := line[len(line)-1-2*l.rig.rng.IntN(2)]
	if to == nil {
		to = line[len(line)-1]
	}
	if err := l.source.restore(ctx, to); err != nil {
		return err
	}
	l.rig.rep.Count(&l.rig.rep.Rollbacks)
	if err := l.source.verifyCopy(ctx, to); err != nil {
		return fmt.Errorf("rolled back into the line: %w", err)
	}
	return nil
}
