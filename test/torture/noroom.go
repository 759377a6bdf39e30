package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/vmm/vmmclient"
)

// layerWithoutRoom: the layer does not fit into its file system. The branch fails; the source goes on.
func (l *line) layerWithoutRoom(ctx context.Context) error {
	return l.withoutRoom(ctx, func(dir string) (s *Snapshot, layer *os.File, err error) {
		if s, layer, err = l.source.newSnapshot("full"); err != nil {
			return nil, nil, err
		}
		layer, err = os.Create(filepath.Join(dir, "layer"))
		return s, layer, err
	})
}

// stateWithoutRoom: there is no room for the vCPU and device state.
func (l *line) stateWithoutRoom(ctx context.Context) error {
	return l.withoutRoom(ctx, func(dir string) (s *Snapshot, layer *os.File, err error) {
		if s, layer, err = l.source.newSnapshot("full"); err != nil {
			return nil, nil, err
		}
		if s.state, err = os.Create(filepath.Join(dir, "state")); err != nil {
			return nil, nil, err
		}
		// A file that takes all the room there is.
		filler, err := os.Create(filepath.Join(dir, "filler"))
		if err != nil {
			return nil, nil, err
		}
		_, full := filler.Write(make([]byte, tinyBytes+1))
		if full == nil {
			return nil, nil, errors.New("the small tmpfs is not full")
		}
		return s, layer, filler.Close()
	})
}

// tinyBytes is the size of a file system that has no room for a branch.
const tinyBytes = 64 << 10

func (l *line) withoutRoom(ctx context.Context, files func(dir string) (*Snapshot, *os.File, error)) (err error) {
	dir, undo, err := l.rig.tinyTmpfs(tinyBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	s, layer, err := files(dir)
	if err != nil {
		return err
	}
	if _, _, err := l.source.setMark(ctx, "hot", "0"); err != nil {
		return err
	}
	p, err := l.source.branchTo(ctx, l.mode(), s, layer)
	if err == nil {
		_, err = l.finish(ctx, p)
	}
	_ = layer.Close()
	_ = s.state.Close()
	if err == nil {
		return errors.New("a branch without room for its files succeeded")
	}
	if errors.Is(err, vmmclient.ErrGone) {
		return fmt.Errorf("the source did not survive: %w", err)
	}
	l.rig.rep.count(&l.rig.rep.Failed)
	if err := l.verifySource(ctx); err != nil {
		return err
	}
	return l.plain(ctx)
}
