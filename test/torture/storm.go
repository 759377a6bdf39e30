package torture

import (
	"context"
	"fmt"

	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// stormTries is how often storm tries to cause a storm. Each try has half of the previous limit of
// write faults. Scheduling determines whether a guest writes enough frozen pages before they are
// copied.
const stormTries = 6

// storm lets the guest write all its pages during a branch. If the guest writes too many pages that
// are not copied yet, the VMM stops the guest until the pages are copied. Afterwards the guest
// continues, and both the guest and its child have the right content.
func (l *line) storm(ctx context.Context) error {
	v := l.source
	for try, bound := 0, 1+l.rig.rng.Uint64N(16); try < stormTries; try, bound = try+1, max(1, bound/2) {
		if _, err := v.ask(ctx, "hot", "0"); err != nil {
			return err
		}
		req := vmmproto.Branch{Mode: vm.BranchLive, MaxExtents: maxExtents, StormFaults: bound}
		p, err := v.begin(ctx, req)
		if err != nil {
			return err
		}
		s, err := v.finish(ctx, p)
		if err != nil {
			return err
		}
		if err := l.goesOn(ctx); err != nil {
			return err
		}
		if err := l.verifySource(ctx); err != nil {
			return err
		}
		if err := l.took(ctx, s); err != nil {
			return err
		}
		if p.copied.Stop > 0 {
			return nil
		}
	}
	return nil
}

// goesOn waits until the guest of the source has made at least one write.
func (l *line) goesOn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	before, err := l.source.ask(ctx)
	for now := before; err == nil && now.Seq == before.Seq; {
		now, err = l.source.ask(ctx)
	}
	if err != nil {
		return fmt.Errorf("source does not go on: %w", err)
	}
	return nil
}
