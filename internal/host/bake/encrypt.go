package bake

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// ramInterval is how often a bake checks whether RAM has room for the disk of an encrypted parent.
const ramInterval = 200 * time.Millisecond

// whileRAM returns a context for the bake of an encrypted parent, whose disk is in RAM. The context
// is canceled when the disk gets too large for the RAM. The cause is then a *vault.RoomError.
func (b *bake) whileRAM(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if !b.req.Encrypt {
		return ctx, func() { cancel(nil) }
	}
	go func() {
		for tick := time.Tick(ramInterval); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick:
			}
			top, err := os.Open(b.staging.Path(snapshot.DiskLayerFile))
			if err != nil {
				continue // the parent has not been booted yet, or the disk is encrypted already
			}
			if err := errors.Join(b.staging.CheckRoom([]*os.File{top}), top.Close()); err != nil {
				cancel(err)
				return
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}
