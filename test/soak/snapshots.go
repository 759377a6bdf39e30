package soak

import (
	"context"
	"fmt"
	"time"

	"github.com/forkd/forkd/client"
)

// branch makes a snapshot of a sandbox.
func (w *worker) branch(b *box) {
	tag, req := w.name(), client.BranchRequest{Mode: w.mode()}
	req.Tag, req.NoWait = tag, req.Mode == "live" && w.rng.IntN(3) == 0
	var made client.Snapshot
	from := time.Now()
	out := w.do(asked{op: "branch", box: b, to: tag + ", " + req.Mode, may: []string{"busy"}},
		func(ctx context.Context) (err error) {
			made, err = w.d.Branch(ctx, b.id, req)
			return err
		})
	if out == done && made.Mode != req.Mode && made.Fallback == "" {
		w.rep.find(&w.rep.Unexpected, "a %s branch of %s is %s for no reason", req.Mode, b.name(), made.Mode)
	}
	promised := out == done && made.Status == "ready"
	if w.written(tag, b, from, out, promised) {
		w.own.snapshots[tag], b.line[tag] = b.now, b.now
	}
	if out != done {
		w.settle(b, b.state)
	}
}

// written waits until a snapshot is written, and reports whether it exists. An acknowledged
// snapshot must exist, and a refused snapshot must not exist. A snapshot whose writing was
// interrupted must also exist, unless a fault explains why it is missing.
func (w *worker) written(tag string, b *box, from time.Time, out outcome, promised bool) (there bool) {
	found := "there is no such snapshot"
	if !w.await(func(ctx context.Context) (bool, error) {
		s, err := w.d.Snapshot(ctx, tag)
		switch {
		case client.IsNotFound(err):
			return true, nil
		case err != nil || s.Status == "writing":
			return false, err
		}
		there, found = s.Status == "ready", fmt.Sprintf("it is %s: %s", s.Status, s.Warning)
		return true, nil
	}) {
		return false
	}
	_, explained := w.faults.explains(from, KillDaemon, FillDisk, FillRAM)
	explained = explained || w.mayBeDead(b)
	switch {
	case there && out == refused:
		w.rep.find(&w.rep.HalfMade, "a branch of %s was refused, and snapshot %s is there: %s", b.name(), tag, found)
	case !there && promised, !there && out == done && !explained:
		w.rep.find(&w.rep.LostSnapshots, "snapshot %s of %s is lost: %s", tag, b.name(), found)
	}
	if !there && found != "there is no such snapshot" { // the list has failed snapshots until they are removed
		w.removeSnapshot(tag, true)
	}
	return there
}

// removeSnapshot removes a snapshot. The daemon refuses the removal if the snapshot is in use.
// Without force, it also refuses if other snapshots build on it.
func (w *worker) removeSnapshot(tag string, force bool) {
	may := []string{"snapshot_in_use"}
	var out outcome
	w.await(func(context.Context) (bool, error) {
		out = w.do(asked{op: "remove snapshot", to: tag, may: may}, func(ctx context.Context) error {
			return w.d.DeleteSnapshot(ctx, tag, client.DeleteOptions{Force: force})
		})
		may = append(may, "snapshot_not_found") // an earlier attempt may have removed the snapshot
		return out != unknown, nil
	})
	if out == refused {
		w.await(func(ctx context.Context) (ready bool, err error) {
			_, err = w.d.Snapshot(ctx, tag)
			if client.IsNotFound(err) {
				out, err = done, nil
			}
			return err == nil, err
		})
	}
	if out == done {
		w.own.forget(tag)
	}
}
