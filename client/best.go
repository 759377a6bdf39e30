package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// An Attempt works in a child of a sandbox and returns the result to be judged.
type Attempt[T any] func(ctx context.Context, child Sandbox) (T, error)

// A Judge returns the score of an attempt. An error disqualifies the attempt.
type Judge[T any] func(ctx context.Context, child Sandbox, result T) (score float64, err error)

// Best is the result of BestOf.
type Best[T any] struct {
	Sandbox Sandbox // the child of the best attempt; it stays running and belongs to the caller
	Index   int     // index of the attempt
	Score   float64
	Result  T       // returned by the attempt
	Errors  []error // for each attempt: why it was disqualified, or nil
}

// BestOf forks a child of a running sandbox for every attempt and runs the attempts concurrently.
// It keeps the child with the highest score, or the first of several children with that score, and
// kills the other children. If all attempts are disqualified, it kills all children and returns an
// error with the reasons. The children are forked with the given request, in which BestOf sets the
// fields SourceID, N and AllowPartial.
func BestOf[T any](ctx context.Context, c *Client, id string, attempts []Attempt[T], judge Judge[T],
	request ForkRequest) (best Best[T], err error) {
	if len(attempts) == 0 {
		return best, wrong("attempts", "none: want one or more")
	}
	request.SourceID, request.N, request.AllowPartial = id, len(attempts), false
	f, err := c.Fork(ctx, request)
	if err != nil {
		return best, err
	}
	results, scores, errs := make([]T, len(attempts)), make([]float64, len(attempts)), make([]error, len(attempts))
	var work sync.WaitGroup
	for i, attempt := range attempts {
		work.Go(func() {
			if results[i], errs[i] = attempt(ctx, f.Sandboxes[i]); errs[i] == nil {
				scores[i], errs[i] = judge(ctx, f.Sandboxes[i], results[i])
			}
		})
	}
	work.Wait()
	best.Index, best.Errors = -1, errs
	for i, score := range scores {
		if errs[i] == nil && (best.Index < 0 || score > best.Score) {
			best.Index, best.Score, best.Result, best.Sandbox = i, score, results[i], f.Sandboxes[i]
		}
	}
	killed := c.killBut(context.WithoutCancel(ctx), f.Sandboxes, best.Index)
	if best.Index < 0 {
		return best, fmt.Errorf("none of %d attempts succeeded: %w", len(attempts), errors.Join(append(errs, killed)...))
	}
	return best, killed
}

// killBut kills all sandboxes except boxes[kept]. Sandboxes that no longer exist are not an error.
func (c *Client) killBut(ctx context.Context, boxes []Sandbox, kept int) error {
	errs := make([]error, len(boxes))
	var work sync.WaitGroup
	for i, box := range boxes {
		if i == kept {
			continue
		}
		work.Go(func() {
			if err := c.Kill(ctx, box.ID); !errors.Is(err, ErrSandboxNotFound) {
				errs[i] = err
			}
		})
	}
	work.Wait()
	return errors.Join(errs...)
}
