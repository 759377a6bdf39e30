package vmmclient

import (
	"context"
	"errors"
	"os"

	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// BranchFiles are the files of a branch; the caller keeps and closes its own descriptors.
type BranchFiles struct {
	State *os.File   // empty
	Layer *os.File   // empty; on tmpfs if children are to run on it
	Tops  []*os.File // formatted, one for every writable disk
}

// Branch saves the machine while it runs. After a live branch (BranchResult.Mode) the layer is complete when WaitCopied
// returns. Until then the VMM refuses further branches, and a refused one changes nothing for the one under way.
func (v *VMM) Branch(ctx context.Context, req vmmproto.Branch, files BranchFiles) (result vmmproto.BranchResult, err error) {
	fds := descriptors(files.State, files.Layer)
	if req.Mode == vmmproto.BranchLive {
		// Without the device the VMM falls back to diff and says so.
		if device, err := os.OpenFile("/dev/userfaultfd", os.O_RDWR, 0); err == nil {
			defer device.Close()
			fds = append(fds, int(device.Fd()))
		}
	}
	req.Tops, req.Serial = uint32(len(files.Tops)), v.first+v.asked.Add(1)
	err = v.call(ctx, vmmproto.KindBranch, &req, append(fds, descriptors(files.Tops...)...), &result)
	if err == nil && result.Mode == vmmproto.BranchLive {
		v.live.Store(req.Serial)
	}
	return result, err
}

// WaitCopied waits for the end of the latest live branch that succeeded; it is called once for each. An error in
// Branched means that the layer is incomplete and of no use; the machine runs on.
func (v *VMM) WaitCopied(ctx context.Context) (vmmproto.Branched, error) {
	for {
		select {
		case b := <-v.branched:
			if b.Serial == v.live.Load() {
				return copied(b)
			}
		case <-v.lost:
			select {
			case b := <-v.branched: // the last that the VMM said
				if b.Serial == v.live.Load() {
					return copied(b)
				}
			default:
				return vmmproto.Branched{}, v.gone()
			}
		case <-ctx.Done():
			return vmmproto.Branched{}, ctx.Err()
		}
	}
}

func copied(b vmmproto.Branched) (vmmproto.Branched, error) {
	if b.Error != "" {
		return b, errors.New(b.Error)
	}
	return b, nil
}
