package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/pause"
)

// suspendAll suspends many sandboxes concurrently. The number of concurrent requests is limited. If
// a sandbox cannot be saved, its request ends after a while and is repeated after the requests for
// all other sandboxes. So the other sandboxes are still saved, and no sandbox fails only because it
// had to wait.
type suspendAll struct {
	cl     *client.Client
	within time.Duration // time limit for all sandboxes together; 0: no limit as long as sandboxes are being saved
	turn   time.Duration // time limit of a request; if within is 0, it also limits each period without a saved sandbox
	turns  *suspendPlaces
	req    client.SuspendRequest

	mu    sync.Mutex
	saved time.Time // time when the latest sandbox was saved
}

func newSuspendAll(cl *client.Client, within time.Duration) *suspendAll {
	return &suspendAll{cl: cl, within: within, turn: 2 * time.Minute, turns: newSuspendPlaces()}
}

// bound returns a context that ends when the time for all sandboxes is over.
func (a *suspendAll) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.within == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, a.within, fmt.Errorf("not done within %v", a.within))
}

// suspend suspends a sandbox of the given owner. It repeats a request that took too long, or for which the daemon says
// how long to wait.
func (a *suspendAll) suspend(ctx context.Context, owner, id string) (s client.Sandbox, err error) {
	defer a.turns.finish(owner)
	for began := (time.Time{}); ; {
		if err := a.turns.take(ctx, owner); err != nil {
			return s, fmt.Errorf("suspend sandbox %q: %w", id, cmp.Or(context.Cause(ctx), err))
		}
		if began.IsZero() {
			began = time.Now()
		}
		s, err = a.ask(ctx, id)
		a.turns.leave(owner)
		if err == nil {
			a.mu.Lock()
			a.saved = time.Now()
			a.mu.Unlock()
			return s, nil
		}
		wait, again := retryAfter(err)
		switch {
		case ctx.Err() != nil:
			return s, fmt.Errorf("suspend sandbox %q: %w: it may still be under way", id, context.Cause(ctx))
		case !again:
			return s, err
		case a.within == 0 && a.stalled(began):
			return s, fmt.Errorf("suspend sandbox %q: not done within %v: it may still be under way: %w", id, a.turn, err)
		}
		_ = pause.For(ctx, wait) // the next request returns the error
	}
}

// ask sends one request to suspend a sandbox. If the request is refused because an earlier request
// has suspended the sandbox, ask succeeds.
func (a *suspendAll) ask(ctx context.Context, id string) (client.Sandbox, error) {
	turn, cancel := context.WithTimeout(ctx, a.turn)
	defer cancel()
	s, err := a.cl.SuspendWith(turn, id, a.req)
	if answer := (*client.Error)(nil); errors.As(err, &answer) && answer.Status == http.StatusConflict {
		if now, failed := a.cl.Sandbox(turn, id); failed == nil && now.State == "suspended" {
			return now, nil
		}
	}
	if err != nil && turn.Err() != nil {
		err = turn.Err()
	}
	return s, err
}

// stalled reports whether no sandbox has been saved for the duration a.turn. This duration begins
// at the given time, or at the latest save if the save was later.
func (a *suspendAll) stalled(began time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.saved.After(began) {
		began = a.saved
	}
	return time.Since(began) >= a.turn
}

// retryAfter reports whether a suspension that has failed with err may succeed later, and returns
// how long to wait.
func retryAfter(err error) (wait time.Duration, again bool) {
	if answer := (*client.Error)(nil); errors.As(err, &answer) {
		busy := answer.Status == http.StatusTooManyRequests || answer.Status == http.StatusServiceUnavailable
		return answer.RetryAfter, busy && answer.RetryAfter > 0
	}
	return 0, errors.Is(err, context.DeadlineExceeded)
}
