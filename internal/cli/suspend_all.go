package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/forkd/forkd/client"
)

// suspendAll suspends many sandboxes side by side. A sandbox that cannot be saved does not keep the
// others from it: its request ends after a while and is repeated after those of all others. So no
// sandbox is given up only because it had to wait for others.
type suspendAll struct {
	cl     *client.Client
	within time.Duration // for all sandboxes together; 0: as long as sandboxes are being saved
	turn   time.Duration // longest request; without within also the longest time in which none is saved
	turns  chan struct{} // one for each request; waiters get them in the order in which they came

	mu    sync.Mutex
	saved time.Time // when the latest sandbox was saved
}

func newSuspendAll(cl *client.Client, within time.Duration) *suspendAll {
	return &suspendAll{cl: cl, within: within, turn: 2 * time.Minute, turns: make(chan struct{}, 32)}
}

// bound returns a context that ends when the time for all sandboxes is over.
func (a *suspendAll) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.within == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, a.within, fmt.Errorf("not done within %v", a.within))
}

// suspend suspends a sandbox. It repeats requests that take too long, or that the daemon answers
// with a time to wait.
func (a *suspendAll) suspend(ctx context.Context, id string) (s client.Sandbox, err error) {
	for began := (time.Time{}); ; {
		select {
		case a.turns <- struct{}{}:
		case <-ctx.Done():
			return s, fmt.Errorf("suspend sandbox %q: %w", id, context.Cause(ctx))
		}
		if began.IsZero() {
			began = time.Now()
		}
		s, err = a.ask(ctx, id)
		<-a.turns
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
		select {
		case <-time.After(wait):
		case <-ctx.Done(): // the next request says so
		}
	}
}

// ask is one request for a suspension. A request that an earlier one has made unnecessary succeeds.
func (a *suspendAll) ask(ctx context.Context, id string) (client.Sandbox, error) {
	turn, cancel := context.WithTimeout(ctx, a.turn)
	defer cancel()
	s, err := a.cl.Suspend(turn, id)
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

// stalled reports whether no sandbox has been saved for the length of a turn, since began.
func (a *suspendAll) stalled(began time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.saved.After(began) {
		began = a.saved
	}
	return time.Since(began) >= a.turn
}

// retryAfter returns how long to wait before a suspension may succeed that has failed with err, and
// whether it may at all.
func retryAfter(err error) (wait time.Duration, again bool) {
	if answer := (*client.Error)(nil); errors.As(err, &answer) {
		busy := answer.Status == http.StatusTooManyRequests || answer.Status == http.StatusServiceUnavailable
		return answer.RetryAfter, busy && answer.RetryAfter > 0
	}
	return 0, errors.Is(err, context.DeadlineExceeded)
}
