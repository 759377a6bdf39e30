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

// BranchFiles are the files of a branch. The caller keeps its own descriptors and must close them.
type BranchFiles struct {
	MemoryBytes uint64 // RAM of the guest, for checking the VMM's answer

	State  *os.File   // an empty file; nil in mode vm.BranchDisk
	Layer  *os.File   // an empty file; nil in mode vm.BranchDisk; must be on tmpfs if children will run on it
	Tops   []*os.File // a formatted, empty top for each disk
	Frozen []*os.File // the present top of each disk, open for reading; no other process uses these descriptors
}

// Branch saves the machine while the machine runs. Branch sets req.Disks and req.Serial. If
// BranchResult.Mode is live, the layer is not complete yet. The caller must then call WaitCopied,
// and the layer is complete when WaitCopied returns. While the VMM copies, it refuses further
// branches, without effect on the present branch. After the branch, Rebase may be called.
func (v *VMM) Branch(ctx context.Context, req vmmproto.Branch, files BranchFiles) (result vmmproto.BranchResult,
	err error) {
	if req.Mode == vm.BranchDisk {
		return v.branchDisks(ctx, req, files)
	}
	fds := descriptors(files.State, files.Layer)
	if req.Mode == vm.BranchLive || req.Keep {
		// Without this device the VMM makes a diff branch instead of a live one, and says so in its
		// answer.
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
	v.expect(req.Serial) // before the answer, because the report that the branch has ended may arrive first
	err = v.call(ctx, vmmproto.KindBranch, &req, fds, &result)
	result.Serial = req.Serial // do not trust the VMM's answer
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

// branchDisks branches the disks, without state and memory.
func (v *VMM) branchDisks(ctx context.Context, req vmmproto.Branch, files BranchFiles) (result vmmproto.BranchResult,
	err error) {
	req.Disks, req.Serial = uint32(len(files.Tops)), v.first+v.asked.Add(1)
	fds := append(descriptors(files.Tops...), descriptors(files.Frozen...)...)
	err = v.call(ctx, vmmproto.KindBranch, &req, fds, &result)
	result.Serial = req.Serial // do not trust the VMM's answer
	if saved := &result.Save; err == nil && (result.Mode != req.Mode || result.Kept || saved.StateBytes != 0 ||
		saved.LayerBytes != 0 || saved.DirtyBytes != 0 || len(saved.Extents) != 0) {
		return vmmproto.BranchResult{}, v.condemn(errors.New("branch: it saved what it was not asked to"))
	}
	return result, err
}

// checkBranch checks a VMM's answer. It returns an error if no working VMM would send that answer.
// The parameter memoryBytes is the size of the guest's memory. The check is needed because the
// daemon computes the snapshot's memory map from the extents in the answer, and fills gaps between
// them.
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

// checkSaved checks the description of the layer that the VMM has written, for checkBranch.
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

// Rebase maps the layer of a branch in place of pages that the machine has not written since that
// branch; see vmmproto.Rebase. The given serial is the BranchResult.Serial of the branch, and the
// given layer is the branch's complete memory layer, open for reading. If the error is
// vm.ErrNotKept, nothing has changed. After any other error, Stats.Rebases shows whether the rebase
// has begun.
func (v *VMM) Rebase(ctx context.Context, serial uint64, layer *os.File) (result vmmproto.RebaseResult, err error) {
	err = v.call(ctx, vmmproto.KindRebase, &vmmproto.Rebase{Serial: serial}, descriptors(layer), &result)
	return result, err
}

// WaitCopied waits until the live branch with the given BranchResult.Serial has ended. It may be
// called only once for each branch. An error in Branched means that the layer is incomplete and
// useless; the machine continues. If ctx ends by its deadline, the VMM loses the memory that it was
// granted for the copy.
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
		case b := <-end: // the VMM may have reported the end before it hung up
			return copied(b)
		default:
			return vmmproto.Branched{}, v.gone()
		}
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			// The layer is abandoned. Data that the VMM still writes to the layer counts as the
			// VMM's own memory.
			v.tighten(nil)
		}
		return vmmproto.Branched{}, ctx.Err()
	}
}

// tighten removes the unused part of the memory that the VMM was granted for a copy. The parameter
// err is the error of the branch. If err shows that the VMM may still be copying, tighten does
// nothing.
func (v *VMM) tighten(err error) {
	givenUp := errors.Is(err, ErrNoAnswer) && !errors.Is(err, context.DeadlineExceeded)
	if !givenUp && !errors.Is(err, vm.ErrCopying) {
		v.leaf.Tighten()
	}
}

// tightenAfter is called for a VMM that an earlier daemon has started. That daemon may have
// requested a copy, for which the VMM was granted memory. After the time d, the copy has ended in
// any case, and tightenAfter removes the unused part of the granted memory. This daemon does not
// know to which file the VMM has copied. So the VMM keeps an allowance for all shared memory that
// it has at that time.
func (v *VMM) tightenAfter(d time.Duration) {
	timer := time.AfterFunc(d, v.leaf.Tighten)
	go func() {
		<-v.done
		timer.Stop()
	}()
}

// expect makes a channel for the report that a branch has ended.
func (v *VMM) expect(serial uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.copies[serial] = make(chan vmmproto.Branched, 1)
}

// copying returns the channel for the report that a branch has ended. The channel is nil if no
// report is expected.
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

// announce passes the report b to WaitCopied. It drops repeated reports, and reports about branches
// of an earlier daemon.
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
