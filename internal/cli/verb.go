package cli

import (
	"context"
	"errors"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/forkd/forkd/client"
)

// show fetches a value from the daemon and prints it. With -o json, it prints JSON. In all other
// cases, it calls text(value).
func show[T any](cmd *cobra.Command, c *common, fetch func(context.Context, *client.Client) (T, error),
	text func(T) error) error {
	return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
		v, err := fetch(ctx, cl)
		if err != nil {
			return err
		}
		return c.print(cmd, v, func() error { return text(v) })
	})
}

// showOf is like show, but for a value of one sandbox. sandboxID resolves ref.
func showOf[T any](cmd *cobra.Command, c *common, ref string,
	fetch func(ctx context.Context, cl *client.Client, id string) (T, error), text func(T) error) error {
	return show(cmd, c, func(ctx context.Context, cl *client.Client) (v T, err error) {
		id, err := sandboxID(ctx, cl, ref)
		if err != nil {
			return v, err
		}
		return fetch(ctx, cl, id)
	}, text)
}

// print prints a value. With -o json, it prints JSON. In all other cases, it calls text().
func (c *common) print(cmd *cobra.Command, v any, text func() error) error {
	if c.json() {
		return writeJSON(cmd.OutOrStdout(), v)
	}
	return text()
}

// each(…) calls op for every name. If op fails for a name, each(…) continues with the next name. It
// prints each result as soon as op has returned it, as the line that text(…) returns. With -o json,
// it prints all results at the end, as the value that list(…) returns.
func each[T any](cmd *cobra.Command, c *common, names []string, op func(name string) (T, error), text func(T) string,
	list func([]T) any) error {
	return eachOf(cmd, c, 1, names, op, text, list)
}

// eachOf is like each, but makes up to atOnce concurrent calls of op.
func eachOf[T any](cmd *cobra.Command, c *common, atOnce int, names []string, op func(name string) (T, error),
	text func(T) string, list func([]T) any) error {
	all, errs := make([]*T, len(names)), make([]error, len(names))
	var group errgroup.Group
	group.SetLimit(atOnce)
	var mu sync.Mutex // serializes output
	for i, name := range names {
		group.Go(func() error {
			v, err := op(name)
			if errs[i] = err; err != nil {
				return nil
			}
			all[i] = &v
			if !c.json() {
				mu.Lock()
				defer mu.Unlock()
				printLine(cmd.OutOrStdout(), text(v))
			}
			return nil
		})
	}
	_ = group.Wait()
	if c.json() {
		done := []T{}
		for _, v := range all {
			if v != nil {
				done = append(done, *v)
			}
		}
		errs = append(errs, writeJSON(cmd.OutOrStdout(), list(done)))
	}
	return errors.Join(errs...)
}

// eachSandbox is like each, but for sandboxes. sandboxID resolves the refs. The JSON output is an
// array.
func eachSandbox[T any](cmd *cobra.Command, c *common, refs []string,
	op func(ctx context.Context, cl *client.Client, id string) (T, error), text func(T) string) error {
	return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
		ids, unclear := sandboxIDs(ctx, cl, refs)
		return errors.Join(unclear, each(cmd, c, ids, func(id string) (T, error) { return op(ctx, cl, id) }, text,
			func(all []T) any { return all }))
	})
}
