package admit

import (
	"context"
	"errors"

	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/owner"
)

// EnterBranches takes one of the places for branches in g, for the owner in ctx. If no place is free,
// it returns a *BusyError or, if queue is true, waits until it is the owner's turn. The caller must
// hold the sandbox's lock. Thus a request that still waits for that lock takes no place.
func EnterBranches(ctx context.Context, g *gate.Gate, queue bool) (leave func(), err error) {
	_, total := g.Count()
	share := owner.FairShare(owner.Of(ctx).Name, total)
	if queue {
		return g.Wait(ctx, share)
	}
	leave, err = g.Enter(share)
	if full := (*gate.FullError)(nil); errors.As(err, &full) {
		return nil, &BusyError{What: "branches", Limit: full.Limit, Owner: full.Key}
	}
	return leave, err
}
