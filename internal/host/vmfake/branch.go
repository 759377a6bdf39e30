package vmfake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Branch implements vmpool.VMM. It reports that the guest has written the first page of its memory.
func (v *VMM) Branch(ctx context.Context, req vmmproto.Branch, f vmmclient.BranchFiles) (r vmmproto.BranchResult,
	err error) {
	unlock, err := v.request(ctx)
	if err != nil {
		return r, err
	}
	defer unlock()
	if v.all.BranchErr != nil {
		return r, errors.Join(v.all.BranchErr, v.holdLocked(cmp.Or(f.State, f.Tops[0])))
	}
	v.asked++
	r.Serial, r.Mode, r.Pause = v.asked, req.Mode, 3*time.Millisecond
	if req.Mode != vm.BranchDisk {
		if v.copyingLocked() {
			return r, vm.WithCode(vm.ErrCopying, errors.New("the live branch before is still being copied"))
		}
		v.last = 0
		if err := v.saveLocked(&r.Save, f); err != nil {
			return r, err
		}
	}
	if err := v.swapTopsLocked(f); err != nil {
		return r, err
	}
	v.Swaps++
	v.Asked = append(v.Asked, req)
	if v.all.LateErr != nil {
		return r, v.all.LateErr
	}
	r.Kept = req.Keep && (req.Mode == vm.BranchLive || req.Mode == vm.BranchDiff)
	if r.Kept {
		v.last = r.Serial
	}
	if req.Mode == vm.BranchLive {
		v.copies[r.Serial] = true
	}
	return r, nil
}

// saveLocked writes state and memory. The memory layer contains the whole memory.
func (v *VMM) saveLocked(r *vmmproto.SaveResult, f vmmclient.BranchFiles) error {
	state := "state"
	if v.all.Files != nil {
		var err error
		if state, err = v.all.Files.Save(v.dir); err != nil {
			return err
		}
	}
	*r = vmmproto.SaveResult{Extents: []vm.Extent{{Length: vm.PageSize}}, LayerBytes: v.shape.MemoryBytes,
		DirtyBytes: vm.PageSize, StateBytes: uint64(len(state))}
	_, err := f.State.WriteAt([]byte(state), 0)
	if v.all.Keep != nil {
		v.kept = append(v.kept, v.all.Keep(f.State))
	}
	_, err2 := f.Layer.WriteAt(make([]byte, vm.PageSize), 0)
	return errors.Join(err, err2, f.Layer.Truncate(int64(r.LayerBytes)))
}

// swapTopsLocked puts new tops on all disks except empty volume slots. If a file does not fit its
// disk, swapTopsLocked returns an error and changes no disk.
func (v *VMM) swapTopsLocked(f vmmclient.BranchFiles) error {
	var disks []*layers
	for i := range v.disks {
		if d := &v.disks[i]; d.top != nil {
			disks = append(disks, d)
		}
	}
	if len(f.Tops) != len(disks) || len(f.Frozen) != len(disks) {
		return fmt.Errorf("%d new and %d frozen disk tops for %d disks", len(f.Tops), len(f.Frozen), len(disks))
	}
	for i, d := range disks {
		if !sameFile(d.top, f.Frozen[i]) {
			return errors.New("the file to read the former top through is another one")
		}
	}
	for i, d := range disks {
		if err := v.swapTopLocked(d, f.Tops[i]); err != nil {
			return err
		}
		d.now++
		v.all.Most = max(v.all.Most, d.now-d.first)
	}
	return nil
}

// copyingLocked reports whether the copying of a live branch is still in progress. A test ends the
// copying by closing Copying.
func (v *VMM) copyingLocked() bool {
	if len(v.copies) == 0 || v.all.Copying == nil {
		return false
	}
	select {
	case <-v.all.Copying:
		return false
	default:
		return true
	}
}

// WaitCopied implements vmpool.VMM.
func (v *VMM) WaitCopied(ctx context.Context, serial uint64) (b vmmproto.Branched, err error) {
	v.all.Mu.Lock()
	expected, copying := v.copies[serial], v.all.Copying
	v.all.Mu.Unlock()
	if !expected {
		return b, fmt.Errorf("no live branch %d is to be waited for", serial)
	}
	defer func() {
		v.all.Mu.Lock()
		defer v.all.Mu.Unlock()
		delete(v.copies, serial)
	}()
	if copying != nil {
		select {
		case <-copying:
		case <-v.done:
			return b, v.gone()
		case <-ctx.Done():
			return b, ctx.Err()
		}
	}
	b.Serial = serial
	if err = v.all.CopyErr; err != nil {
		b.Failed = vmmproto.ErrorOf(err)
	}
	return b, err
}

// Rebase implements vmpool.VMM. It changes no memory.
func (v *VMM) Rebase(ctx context.Context, serial uint64, layer *os.File) (r vmmproto.RebaseResult, err error) {
	unlock, err := v.request(ctx)
	if err != nil {
		return r, err
	}
	defer unlock()
	if v.all.RebaseErr != nil {
		return r, v.all.RebaseErr
	}
	st, err := layer.Stat()
	if err != nil || uint64(st.Size()) != v.shape.MemoryBytes || v.last == 0 || v.last != serial || v.copyingLocked() {
		return r, vm.WithCode(vm.ErrNotKept, fmt.Errorf("rebase onto branch %d: its pages are no longer known", serial))
	}
	v.Rebases++
	v.last = 0
	return vmmproto.RebaseResult{Bytes: vm.PageSize, Mappings: 3}, v.all.LateRebase
}

// Merge implements vmpool.VMM.
func (v *VMM) Merge(ctx context.Context, req vmmproto.Merge, _ *os.File) error {
	unlock, err := v.request(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if int(req.Disk) >= len(v.disks) {
		return fmt.Errorf("merge layers of disk %d: there are %d", req.Disk, len(v.disks))
	}
	d, first := &v.disks[req.Disk], int(req.First)
	if below := d.now - 1; first >= below {
		return fmt.Errorf("merge layers from %d: %d are below the top", first, below)
	}
	d.now = first + 2 // the merged layer and the top
	return nil
}

// SetVolume implements vmpool.VMM. Every disk after the first is a volume slot.
func (v *VMM) SetVolume(ctx context.Context, disk int, _ uint64, files []*os.File) error {
	unlock, err := v.request(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if v.all.VolumeErr != nil {
		return v.all.VolumeErr
	}
	if disk < 1 || disk >= len(v.disks) || (len(files) == 0) == (v.disks[disk].top == nil) {
		return fmt.Errorf("disk %d cannot get %d files", disk, len(files))
	}
	d := &v.disks[disk]
	d.first, d.now = len(files)-1, len(files)-1
	if len(files) > 0 {
		return v.swapTopLocked(d, files[len(files)-1])
	}
	d.top.Close()
	d.top = nil
	return nil
}

// volumesLocked returns the set of volume slots with disks.
func (v *VMM) volumesLocked() (set uint32) {
	for i, d := range v.disks {
		if i > 0 && d.top != nil {
			set |= 1 << (i - 1)
		}
	}
	return set
}
