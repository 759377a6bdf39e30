package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newInspectCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "inspect ID|TAG…",
		Short: "Print everything about sandboxes and snapshots, as JSON",
		Long: "Prints one array with an object for each name: a sandbox by its id, the beginning of that or its workspace, else a\n" +
			"snapshot by its tag.",
		Example: "  forkd inspect ID | jq -r '.[0].state'",
		Args:    usageArgs(arguments(1, anyNumber)),
		RunE: func(cmd *cobra.Command, names []string) error {
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				list, err := cl.Sandboxes(ctx)
				if err != nil {
					return err
				}
				found := []any{}
				var errs []error
				for _, name := range names {
					thing, err := inspect(ctx, cl, list, name)
					if err != nil {
						errs = append(errs, err)
						continue
					}
					found = append(found, thing)
				}
				return errors.Join(append(errs, writeJSON(cmd.OutOrStdout(), found))...)
			})
		},
	}
	c.complete(cmd, either(sandboxNames, tags))
	c.register(cmd)
	return cmd
}

// inspect returns the sandbox of list, or the snapshot, that a name means.
func inspect(ctx context.Context, cl *client.Client, list []client.Sandbox, name string) (any, error) {
	id, err := findID(list, name)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(list, func(s client.Sandbox) bool { return s.ID == id }); i >= 0 {
		return list[i], nil
	}
	d, err := cl.Snapshot(ctx, name)
	if client.IsNotFound(err) {
		return nil, fmt.Errorf("%q: neither a sandbox ('forkd ls') nor a snapshot ('forkd images')", name)
	}
	return d, err
}

func newHistoryCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "history TAG",
		Short: "List what a snapshot was made from, the newest first",
		Args:  usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				line, err := history(ctx, cl, args[0])
				if err != nil {
					return err
				}
				if c.json() {
					return writeJSON(cmd.OutOrStdout(), line)
				}
				return table(cmd, "TAG\tAGE\tMADE BY\tSIZE\tSTATUS", func(row func(...any)) {
					for _, d := range line {
						by := "build"
						if d.Mode != "" {
							by = d.Mode + " branch"
						}
						row(d.Tag, age(d.CreatedAt), by, mib(snapshotBytes(&d)), d.Status)
					}
				})
			})
		},
	}
	c.completeTags(cmd)
	c.register(cmd)
	return cmd
}

// history describes a snapshot and its ancestors. One that has been removed since is left out: what
// others need of it is theirs too.
func history(ctx context.Context, cl *client.Client, tag string) ([]client.SnapshotDetail, error) {
	d, err := cl.Snapshot(ctx, tag)
	if err != nil {
		return nil, err
	}
	line := []client.SnapshotDetail{d}
	for _, tag := range slices.Backward(d.Ancestors) {
		a, err := cl.Snapshot(ctx, tag)
		switch {
		case client.IsNotFound(err):
		case err != nil:
			return nil, err
		default:
			line = append(line, a)
		}
	}
	return line, nil
}
