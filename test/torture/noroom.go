package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/proto/vm"
)

// tinyBytes is the size of a file system that is too small for a branch.
const tinyBytes = 64 << 10

// layerWithoutRoom makes branches to a file system that becomes full at the beginning of the layer,
// in the middle, or after the end of the layer. The source continues. If the layer is complete, its
// children have the right content and need no further room.
func (l *line) layerWithoutRoom(ctx context.Context) (err error) {
	v := l.source
	if _, err := v.ask(ctx, "hot", "0"); err != nil {
		return err
	}
	stats, err := v.Stats(ctx)
	if err != nil {
		return err
	}
	room := tinyBytes + l.rig.rng.Uint64N(2*stats.GuestDirtyBytes)
	if l.rig.rng.IntN(3) == 0 {
		room = tinyBytes + l.rig.shape.MemoryBytes
	}
	dir, undo, err := l.rig.tinyTmpfs(room)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	req := l.request()
	if l.rig.rng.IntN(2) == 0 {
		req.Mode = vm.BranchLive
	}
	s, _, err := v.newMarked(ctx, "full")
	if err != nil {
		return err
	}
	layer, err := os.Create(filepath.Join(dir, "layer"))
	if err != nil {
		return err
	}
	p, err := v.branchTo(ctx, req, s, layer)
	if err == nil {
		err = v.wait(ctx, p)
	}
	if err != nil {
		_ = layer.Close()
		return l.failed(ctx, p, err)
	}
	if err := fillUp(dir); err != nil {
		return err
	}
	if s, err = v.complete(p); err != nil {
		return err
	}
	l.rig.rep.Count(&l.rig.rep.FullFS)
	if err := l.verifySource(ctx); err != nil {
		return err
	}
	return l.took(ctx, s)
}

// stateWithoutRoom makes a branch to a file system that has no room for the vCPU and device state.
func (l *line) stateWithoutRoom(ctx context.Context) (err error) {
	v := l.source
	dir, undo, err := l.rig.tinyTmpfs(tinyBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	s, layer, err := v.newMarked(ctx, "full")
	if err != nil {
		return err
	}
	if s.state, err = os.Create(filepath.Join(dir, "state")); err != nil {
		return err
	}
	defer s.state.Close()
	if err := fillUp(dir); err != nil {
		return err
	}
	p, err := v.branchTo(ctx, l.request(), s, layer)
	if err == nil {
		return errors.New("a branch without room for its state succeeded")
	}
	return l.failed(ctx, p, err)
}

// failed(ctx, p, err) checks that a branch failed for lack of room, and that the source of the
// branch continues. The parameter p is nil if the branch failed while the guest was stopped.
func (l *line) failed(ctx context.Context, p *pending, err error) error {
	if errors.Is(err, vmmclient.ErrGone) {
		return fmt.Errorf("the source did not survive: %w", err)
	}
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	l.rig.rep.Count(&l.rig.rep.Failed)
	if p != nil && p.copied.Faults > 0 {
		l.rig.rep.Count(&l.rig.rep.FailedUnderFire)
	}
	if err := l.goesOn(ctx); err != nil {
		return err
	}
	if err := l.verifySource(ctx); err != nil {
		return err
	}
	return l.plain(ctx)
}

// fillUp fills the tmpfs at dir completely.
func fillUp(dir string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("measure %s: %w", dir, err)
	}
	size := fmt.Sprintf("size=%d", max(1, fs.Blocks-fs.Bfree)*uint64(fs.Bsize)) // a size of 0 would mean no limit
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, size); err != nil {
		return fmt.Errorf("shrink %s: %w", dir, err)
	}
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		return err
	}
	page := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}
