package vmmclient

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/forkd/forkd/internal/format/memlayer"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// BranchFiles are the files of a branch; the caller keeps and closes its own descriptors.
type BranchFiles struct {
	MemoryBytes uint64 // of the guest: what the VMM says of the layer is checked against it

	State  *os.File   // empty; not in mode vm.BranchDisk
	Layer  *os.File   // likewise; on tmpfs if children are to run on it
	Tops   []*os.File // formatted, one for every disk
	Frozen []*os.File // the present top of every disk, opened for reading
}

// Branch saves the machine while it runs. After a live branch (BranchResult.Mode) the layer is
// complete when WaitCopied returns, which is to be called for it. Rebase may follow. While it is
// being copied the VMM refuses further branches, and a refused one changes nothing for the one
// under way. Branch.Disks and Branch.Serial are set here.
func (v *VMM) Branch(ctx context.Context, req vmmproto.Branch, files BranchFiles) (result vmmproto.BranchResult,
	err error) {
	if req.Mode == vm.BranchDisk {
		return v.branchDisks(ctx, req, files)
	}
	fds := descriptors(files.State, files.Layer)
	if req.Mode == vm.BranchLive || req.Keep {
		// Without the device the VMM falls back to diff and says so.
		if device, err := os.OpenFile("/dev/userfaultfd", os.O_RDWR, 0); err == nil {
			defer device.Close()
			fds = append(fds, int(device.Fd()))
		}
	}
	if err := v.leaf.Spare(files.Layer); err != nil {
		return result, err
	}
	fds = append(append(fds, descriptors(files.Tops...)...), descriptors(files.Frozen...)...)
	req.Disks, req.Serial = uint32(len(files.Tops)), v.first+v.asked.Add(1)
	v.expect(req.Serial) // the end may be announced before the answer is read
	err = v.call(ctx, vmmproto.KindBranch, &req, fds, &result)
	result.Serial = req.Serial // whatever the VMM says
	if err == nil {
		if wrong := checkBranch(&req, &result, files.MemoryBytes); wrong != nil {
			result, err = vmmproto.BranchResult{}, v.condemn(wrong)
		}
	}
	if err != nil || result.Mode != vm.BranchLive {
		v.stopExpecting(req.Serial)
		v.tighten(err)
	}
	return result, err
}

// branchDisks is Branch without state and memory.
func (v *VMM) branchDisks(ctx context.Context, req vmmproto.Branch, files BranchFiles) (result vmmproto.BranchResult,
	err error) {
	req.Disks, req.Serial = uint32(len(files.Tops)), v.first+v.asked.Add(1)
	fds := append(descriptors(files.Tops...), descriptors(files.Frozen...)...)
	err = v.call(ctx, vmmproto.KindBranch, &req, fds, &result)
	result.Serial = req.Serial // whatever the VMM says
	if saved := &result.Save; err == nil && (result.Mode != req.Mode || result.Kept || saved.StateBytes != 0 ||
		saved.LayerBytes != 0 || saved.DirtyBytes != 0 || len(saved.Extents) != 0) {
		return vmmproto.BranchResult{}, v.condemn(errors.New("branch: it saved what it was not asked to"))
	}
	return result, err
}

// checkBranch reports whether a VMM whose guest has so much memory can have answered a request so.
// The daemon composes the snapshot's map of the extents, and fills gaps between them itself.
func checkBranch(req *vmmproto.Branch, r *vmmproto.BranchResult, memoryBytes uint64) error {
	fellBack := req.Mode == vm.BranchLive && r.Mode == vm.BranchDiff
	switch {
	case r.Mode != req.Mode && !fellBack:
		return fmt.Errorf("branch: it was done as %v instead of %v", r.Mode, req.Mode)
	case r.Kept && !req.Keep:
		return errors.New("branch: it keeps pages in mind that it was not asked to")
	}
	return checkSaved(&r.Save, req.MaxExtents, memoryBytes)
}

// checkSaved is checkBranch for what a VMM says of the layer that it wrote.
func checkSaved(r *vmmproto.SaveResult, maxExtents uint32, memoryBytes uint64) error {
	if r.LayerBytes != memoryBytes || r.DirtyBytes > memoryBytes {
		return fmt.Errorf("a memory layer of %d bytes, %d of them written: its guest has %d", r.LayerBytes, r.DirtyBytes,
			memoryBytes)
	}
	if err := memlayer.CheckSaved(r.Extents, memoryBytes, int(maxExtents)); err != nil {
		return fmt.Errorf("memory layer: %w", err)
	}
	return nil
}

// Rebase puts mappings of the complete memory layer of the branch that BranchResult.Serial names,
// opened for reading, in the place of what the machine has not written since; see vmmproto.Rebase.
// An error that is vm.ErrNotKept has changed nothing. After another Stats.Rebases tells whether it
// has begun.
func (v *VMM) Rebase(ctx context.Context, serial uint64, layer *os.File) (result vmmproto.RebaseResult, err error) {
	err = v.call(ctx, vmmproto.KindRebase, &vmmproto.Rebase{Serial: serial}, descriptors(layer), &result)
	return result, err
}

// WaitCopied waits for the end of the live branch that BranchResult.Serial names; it is called once
// for each. An error in Branched means that the layer is incomplete and of no use; the machine runs
// on. A VMM that has not copied the layer by the deadline of ctx gets no more memory for it.
func (v *VMM) WaitCopied(ctx context.Context, serial uint64) (vmmproto.Branched, error) {
	end := v.copying(serial)
	if end == nil {
		return vmmproto.Branched{}, fmt.Errorf("no live branch %d of forkd-vmm %s is to be waited for", serial, v.id)
	}
	defer v.stopExpecting(serial)
	select {
	case b := <-end:
		v.tighten(nil)
		return copied(b)
	case <-v.lost:
		select {
		case b := <-end: // the last that the VMM said
			return copied(b)
		default:
			return vmmproto.Branched{}, v.gone()
		}
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			v.tighten(nil) // the layer is given up: a VMM that still writes to it does so as part of its own memory
		}
		return vmmproto.Branched{}, ctx.Err()
	}
}

// tighten takes back memory that a copy was allowed and did not need. A VMM may still be writing a copy
// for an earlier daemon, or after a question that its caller gave up; what it has not written in the
// time that a copy has is given up.
func (v *VMM) tighten(err error) {
	givenUp := errors.Is(err, ErrNoAnswer) && !errors.Is(err, context.DeadlineExceeded)
	if !givenUp && !errors.Is(err, vm.ErrCopying) {
		v.leaf.Tighten()
	}
}

// tightenAfter is tighten for a copy that an earlier daemon may have asked for, when it has had its
// time. What a VMM has in shared memory by then stays allowed, for this daemon does not know the files.
func (v *VMM) tightenAfter(d time.Duration) {
	timer := time.AfterFunc(d, v.leaf.Tighten)
	go func() {
		<-v.done
		timer.Stop()
	}()
}

// expect makes room for the announcement of a branch's end.
func (v *VMM) expect(serial uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.copies[serial] = make(chan vmmproto.Branched, 1)
}

// copying returns where the end of a branch is announced, nil if nobody expects it.
func (v *VMM) copying(serial uint64) chan vmmproto.Branched {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.copies[serial]
}

func (v *VMM) stopExpecting(serial uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.copies, serial)
}

// announce puts b where WaitCopied looks. The end of a branch is announced once; what else a VMM
// says, or says of an earlier daemon's branch, goes nowhere.
func (v *VMM) announce(b vmmproto.Branched) {
	select {
	case v.copying(b.Serial) <- b:
	default:
	}
}

func copied(b vmmproto.Branched) (vmmproto.Branched, error) {
	if b.Failed != nil {
		return b, b.Failed.Err()
	}
	return b, nil
}
