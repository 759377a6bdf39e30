package build

import (
	"context"
	"slices"

	"github.com/forkd/forkd/internal/build/plan"
)

// maxIdle is the maximum number of sandboxes that a build keeps for later steps. If there are more,
// the oldest one is killed, and a later step forks the snapshot instead.
const maxIdle = 4

// idle is a sandbox in the state that it had at the end of a step.
type idle struct {
	step int
	box  string
}

// begin returns a sandbox for a step. The sandbox is in the state at the end of the previous step.
func (w *work) begin(ctx context.Context, i int) (string, error) {
	from := w.plan.Steps[i].From
	box := w.takeIdle(from)
	other := w.memory[i] && !w.memory[from] // the step needs the memory of a fresh boot, which box no longer has
	if box != "" && (other || w.plan.Steps[i].Children != nil) {
		w.b.end(box)
		box = ""
	}
	if box != "" {
		return box, nil
	}
	return w.forkOf(ctx, from, i)
}

// reading() returns a sandbox from which the caller can read the files as they were at the end of a
// step.
func (w *work) reading(ctx context.Context, i int) (string, error) {
	if box := w.takeIdle(i); box != "" {
		return box, nil
	}
	return w.forkOf(ctx, i, i)
}

func (w *work) takeIdle(step int) (box string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n, l := range w.idle {
		if l.step == step {
			w.idle = slices.Delete(w.idle, n, n+1)
			return l.box
		}
	}
	return ""
}

// leave() keeps the sandbox of a finished step if other steps may need it. If no other step does,
// leave() kills the sandbox.
func (w *work) leave(step int, box string) {
	end := box
	w.mu.Lock()
	if w.isWanted(step) {
		w.idle, end = append(w.idle, idle{step, box}), ""
		if len(w.idle) > maxIdle {
			w.idle, end = w.idle[1:], w.idle[0].box
		}
	}
	w.mu.Unlock()
	if end != "" {
		w.b.end(end)
	}
}

// isWanted reports whether another step continues the step or reads its files.
func (w *work) isWanted(step int) bool {
	return slices.ContainsFunc(w.plan.Steps, func(s plan.Step) bool {
		return s.From == step || slices.Contains(s.Needs(), step)
	})
}

func (w *work) endIdle() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.idle {
		w.b.end(l.box)
	}
	w.idle = nil
}
