package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newSnapshotDiffCmd() *cobra.Command {
	var c common
	var from, tag, command string
	var limit float64
	cmd := &cobra.Command{
		Use:   "snapshot-diff --from TAG --tag NEW --exec COMMAND",
		Short: "Run a command in a fork of a snapshot and save the result as a new snapshot",
		Long:  "Forks one sandbox from TAG, runs COMMAND in it with /bin/sh -c, branches it to NEW and kills it.",
		Args:  usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				s, err := snapshotDiff(ctx, cl, from, tag, command, limit)
				if err != nil {
					return err
				}
				return printBranch(cmd, &c, s, false)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "the snapshot to start from")
	f.StringVar(&tag, "tag", "", "the new snapshot")
	f.StringVar(&command, "exec", "", "command line for /bin/sh -c")
	limit = 600
	f.Var((*secondsValue)(&limit), "exec-timeout-secs", "time limit of the command")
	for _, name := range []string{"from", "tag", "exec"} {
		_ = cmd.MarkFlagRequired(name) // fails only for a flag that does not exist
	}
	c.completeFlag(cmd, "from", tags)
	c.register(cmd)
	return cmd
}

func snapshotDiff(ctx context.Context, cl *client.Client, from, tag, command string, limit float64) (s client.Snapshot,
	err error) {
	forked, err := cl.Fork(ctx, client.ForkRequest{SnapshotTag: from, N: 1})
	if err != nil {
		return s, err
	}
	id := forked.Sandboxes[0].ID
	defer func() { err = errors.Join(err, cl.Kill(context.WithoutCancel(ctx), id)) }()
	r, err := cl.Exec(ctx, id, client.ExecRequest{Args: []string{"/bin/sh", "-c", command}, TimeoutSecs: limit})
	if err != nil {
		return s, err
	}
	if r.ExitCode != 0 || r.Error != "" {
		return s, fmt.Errorf("%q: exit code %d %s\n%s", command, r.ExitCode, r.Error, r.Stderr)
	}
	return cl.Branch(ctx, id, client.BranchRequest{Tag: tag, Mode: "diff", ParentTag: from})
}

func newSnapshotCompactCmd() *cobra.Command {
	var c common
	var from, to string
	cmd := &cobra.Command{
		Use:   "snapshot-compact --from TAG --to NEW",
		Short: "Copy a snapshot into a self-contained one",
		Args:  usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (client.Snapshot, error) {
				return cl.CompactSnapshot(ctx, from, to)
			}, func(s client.Snapshot) error {
				printLine(cmd.OutOrStdout(), s.Tag)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "the snapshot to compact")
	cmd.Flags().StringVar(&to, "to", "", "the new snapshot")
	for _, name := range []string{"from", "to"} {
		_ = cmd.MarkFlagRequired(name) // fails only for a flag that does not exist
	}
	c.completeFlag(cmd, "from", tags)
	c.register(cmd)
	return cmd
}
