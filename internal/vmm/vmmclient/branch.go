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
// returns, which must be called before the next branch.
func (v *VMM) Branch(ctx context.Context, req vmmproto.Branch, files BranchFiles) (result vmmproto.BranchResult, err error) {
	fds := descriptors(files.State, files.Layer)
	if req.Mode == vmmproto.BranchLive {
		// Without the device the VMM falls back to diff and says so.
		if device, err := os.OpenFile("/dev/userfaultfd", os.O_RDWR, 0); err == nil {
			defer device.Close()
			fds = append(fds, int(device.Fd()))
		}
	}
	req.Tops, req.Serial = uint32(len(files.Tops)), v.serial.Add(1)
	select {
	case <-v.branched: // of a branch that nobody waited for
	default:
	}
	err = v.call(ctx, vmmproto.KindBranch, &req, append(fds, descriptors(files.Tops...)...), &result)
	return result, err
}

// WaitCopied waits for the end of the live branch that Branch began. An error in Branched means that the layer is
// incomplete and of no use; the machine runs on.
func (v *VMM) WaitCopied(ctx context.Context) (vmmproto.Branched, error) {
	select {
	case b := <-v.branched:
		return copied(b)
	case <-v.lost:
		select {
		case b := <-v.branched: // the last that the VMM said
			return copied(b)
		default:
			return vmmproto.Branched{}, v.gone()
		}
	case <-ctx.Done():
		return vmmproto.Branched{}, ctx.Err()
	}
}

func copied(b vmmproto.Branched) (vmmproto.Branched, error) {
	if b.Error != "" {
		return b, errors.New(b.Error)
	}
	return b, nil
}
