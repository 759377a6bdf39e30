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
	MemoryBytes uint64 // guest RAM, against which the VMM's answer is checked

	State  *os.File   // empty file; nil in mode vm.BranchDisk
	Layer  *os.File   // likewise; on tmpfs if children will run on it
	Tops   []*os.File // formatted, one for every disk
	Frozen []*os.File // the present top of every disk, opened for reading, for this VMM alone
}

// Branch saves the machine while it runs. After a live branch (BranchResult.Mode) the layer is
// complete when WaitCopied, which must be called, returns. Rebase may follow. During the copying
// the VMM refuses further branches, without effect on the current one. Branch sets Branch.Disks and
// Branch.Serial.
func (v *VMM) Branch(ctx context.Context, req vmmproto.Branch, files BranchFiles) (result vmmproto.BranchResult,
	err error) {
	if req.Mode == vm.BranchDisk {
		return v.branchDisks(ctx, req, files)
	}
	fds := descriptors(files.State, files.Layer)
	if req.Mode == vm.BranchLive || req.Keep {
		// Without the device the VMM falls back to diff and reports that.
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
	v.expect(req.Serial) // because the end may be announced before the answer is read
	err = v.call(ctx, vmmproto.KindBranch, &req, fds, &result)
	result.Serial = req.Serial // regardless of the VMM's answer
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
	result.Serial = req.Serial // regardless of the VMM's answer
	if saved := &result.Save; err == nil && (result.Mode != req.Mode || result.Kept || saved.StateBytes != 0 ||
		saved.LayerBytes != 0 || saved.DirtyBytes != 0 || len(saved.Extents) != 0) {
		return vmmproto.BranchResult{}, v.condemn(errors.New("branch: it saved what it was not asked to"))
	}
	return result, err
}

// checkBranch returns an error if an intact VMM whose guest has memoryBytes of memory cannot have
// sent this answer. The daemon composes the snapshot's map of the extents, and fills gaps between
// them itself.
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

// checkSaved is checkBranch for the VMM's description of the layer that it wrote.
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

// Rebase replaces the machine's pages that it has not written since a branch by mappings of that
// branch's layer; see vmmproto.Rebase. serial is the branch's BranchResult.Serial, and layer its
// complete memory layer, opened for reading. After a vm.ErrNotKept nothing has changed. After any
// other error Stats.Rebases tells whether the rebase has begun.
func (v *VMM) Rebase(ctx context.Context, serial uint64, layer *os.File) (result vmmproto.RebaseResult, err error) {
	err = v.call(ctx, vmmproto.KindRebase, &vmmproto.Rebase{Serial: serial}, descriptors(layer), &result)
	return result, err
}

// WaitCopied waits for the end of the live branch with the given BranchResult.Serial. It is called
// once for each. An error in Branched means that the layer is incomplete and useless; the machine
// runs on. If the VMM has not copied the layer by the deadline of ctx, its extra memory allowance
// ends.
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
		case b := <-end: // the VMM's last message
			return copied(b)
		default:
			return vmmproto.Branched{}, v.gone()
		}
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			v.tighten(nil) // the layer is abandoned: if the VMM still writes to it, that counts as its own memory
		}
		return vmmproto.Branched{}, ctx.Err()
	}
}

// tighten removes the unused memory allowance for a copy. A VMM may still be writing a copy for an
// earlier daemon, or after its caller cancelled the request; it loses the allowance after the time
// limit of a copy.
func (v *VMM) tighten(err error) {
	givenUp := errors.Is(err, ErrNoAnswer) && !errors.Is(err, context.DeadlineExceeded)
	if !givenUp && !errors.Is(err, vm.ErrCopying) {
		v.leaf.Tighten()
	}
}

// tightenAfter is tighten, after the time limit, for a copy that an earlier daemon may have
// requested. The VMM's shared memory at that time stays allowed, because this daemon does not know
// the files.
func (v *VMM) tightenAfter(d time.Duration) {
	timer := time.AfterFunc(d, v.leaf.Tighten)
	go func() {
		<-v.done
		timer.Stop()
	}()
}

// expect prepares for the announcement of a branch's end.
func (v *VMM) expect(serial uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.copies[serial] = make(chan vmmproto.Branched, 1)
}

// copying returns the channel for the end of a branch, nil if no caller expects it.
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

// announce sends b to WaitCopied. The end of a branch is announced once; repeated messages, and
// those about an earlier daemon's branch, are dropped.
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
