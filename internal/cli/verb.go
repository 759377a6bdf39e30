package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// show is a command that fetches a value from a daemon and prints it, as JSON with -o json and else
// by text.
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

// showOf is show for a value of one sandbox, given by ref as in sandboxID.
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

// print prints a value, as JSON with -o json and else by text.
func (c *common) print(cmd *cobra.Command, v any, text func() error) error {
	if c.json() {
		return writeJSON(cmd.OutOrStdout(), v)
	}
	return text()
}

// each calls op for every name and continues after errors. It prints each result at once, as a line
// from text, or with -o json all results at the end, converted by list.
func each[T any](cmd *cobra.Command, c *common, names []string, op func(name string) (T, error), text func(T) string,
	list func([]T) any) error {
	done := []T{}
	var errs []error
	for _, name := range names {
		v, err := op(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		done = append(done, v)
		if !c.json() {
			printLine(cmd.OutOrStdout(), text(v))
		}
	}
	if c.json() {
		errs = append(errs, writeJSON(cmd.OutOrStdout(), list(done)))
	}
	return errors.Join(errs...)
}

// eachSandbox is each for sandboxes given by refs as in sandboxID; its JSON is an array.
func eachSandbox[T any](cmd *cobra.Command, c *common, refs []string,
	op func(ctx context.Context, cl *client.Client, id string) (T, error), text func(T) string) error {
	return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
		ids, unclear := sandboxIDs(ctx, cl, refs)
		return errors.Join(unclear, each(cmd, c, ids, func(id string) (T, error) { return op(ctx, cl, id) }, text,
			func(all []T) any { return all }))
	})
}
