package imagevm

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// watchdog cancels the context of a fill if one of its waits, or the fill as a whole, takes too
// long.
type watchdog struct {
	cancel context.CancelCauseFunc
	all    *time.Timer

	mu  sync.Mutex
	one *time.Timer // timer of the present wait; nil before the first wait
}

// newWatchdog returns a watchdog and its context. If the watchdog cancels the context, the cause is a
// context.DeadlineExceeded.
func newWatchdog(ctx context.Context) (context.Context, *watchdog) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watchdog{cancel: cancel}
	w.all = time.AfterFunc(fillTime, func() { w.bark("the image is not unpacked after %v", fillTime) })
	return ctx, w
}

func (w *watchdog) bark(format string, after time.Duration) {
	w.cancel(fmt.Errorf(format+": %w", after, context.DeadlineExceeded))
}

// expect ends the present wait, and begins a wait with a time limit. If the wait takes longer, the
// error has the given text, which contains a formatting verb for the limit.
func (w *watchdog) expect(limit time.Duration, format string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.one != nil {
		w.one.Stop()
	}
	w.one = time.AfterFunc(limit, func() { w.bark(format, limit) })
}

// expectSource begins the wait for the next bytes of the stream.
func (w *watchdog) expectSource() {
	w.expect(stallTime, "nothing of the image has arrived for %v")
}

// end stops the watchdog and cancels the context.
func (w *watchdog) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Stop()
	if w.one != nil {
		w.one.Stop()
	}
	w.cancel(nil)
}
