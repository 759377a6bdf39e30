package template

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/forkd/forkd/internal/host/agentclient"
)

// start runs the start command, which is to run on in the template, and waits until the template is
// ready.
func (w *work) start(ctx context.Context, c *agentclient.Client) error {
	if w.plan.StartCmd == "" && w.plan.ReadyCmd == "" {
		return nil
	}
	ended := make(chan error, 1)
	running, leave := context.WithCancelCause(ctx)
	defer func() {
		leave(agentclient.ErrDetached) // the command goes on by itself
		if w.plan.StartCmd != "" {
			<-ended
		}
	}()
	waiting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if w.plan.StartCmd != "" {
		w.say("start: %s", w.plan.StartCmd)
		go func() {
			cmd := w.client(w.plan.StartCmd, "", 0)
			cmd.prefix = "[start] "
			err := w.run(running, c, cmd)
			if err != nil && running.Err() == nil {
				stop(fmt.Errorf("start command: %w", err))
			}
			ended <- err
		}()
	}
	return causeOf(waiting, w.waitReady(waiting, c))
}

// waitReady waits until the ready command succeeds.
func (w *work) waitReady(ctx context.Context, c *agentclient.Client) error {
	if w.plan.ReadyCmd == "" {
		return wait(ctx, readyAfter)
	}
	w.say("ready?: %s", w.plan.ReadyCmd)
	ctx, cancel := context.WithTimeoutCause(ctx, maxReady, fmt.Errorf("ready command: it has not succeeded within %v",
		maxReady))
	defer cancel()
	cmd := w.client(w.plan.ReadyCmd, "", maxReady)
	cmd.prefix, cmd.level = "[ready] ", levelDebug // it may fail many times
	for {
		err := w.run(ctx, c, cmd)
		if err == nil {
			w.say("the template is ready")
			return nil
		}
		var unreachable *agentclient.Error
		if errors.As(err, &unreachable) {
			return err
		}
		if wait(ctx, readyEvery) != nil {
			return context.Cause(ctx)
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
