package cli

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newBranchCmd() *cobra.Command {
	var c common
	var req client.BranchRequest
	var labels []string
	var figures bool
	cmd := &cobra.Command{
		Use:     "branch ID [TAG]",
		Aliases: []string{"commit"},
		Short:   "Make a snapshot of a running sandbox",
		Long: "Saves memory, disk and processes of the sandbox ID at one instant as a snapshot. The sandbox keeps\n" +
			"running. Sandboxes can be forked from the snapshot immediately. It is written to disk in the background.\n\n" +
			"With --disk-only neither memory nor processes are saved: the guest's file system is frozen for a moment,\n" +
			"and deleted files take no space. A fork of such a snapshot boots; 'forkd build --from' boots a parent\n" +
			"from it, with other memory or processors.",
		Args: usageArgs(arguments(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				if req.Tag != "" {
					return usageError{errors.New("TAG and --tag are the same: give one of them")}
				}
				req.Tag = args[1]
			}
			var err error
			if req.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			if req.DiskOnly {
				if cmd.Flags().Changed("mode") || req.NoWait {
					return usageError{errors.New("--disk-only excludes --mode and --no-wait: it saves no memory")}
				}
				req.Mode = ""
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				return branch(ctx, cmd, &c, cl, args[0], req, figures)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Tag, "tag", "", "the snapshot's tag (default: branch-<id>-<time>-<random>)")
	f.StringVar(&req.Mode, "mode", "live",
		"live, diff (pause the sandbox and copy the pages that it has written) or full (pause it and copy all pages)")
	f.StringVar(&req.ParentTag, "parent-tag", "", "refuse if the sandbox does not run from this snapshot")
	f.BoolVar(&req.NoWait, "no-wait", false,
		"return when the sandbox runs again, before the snapshot is complete; live only")
	f.StringArrayVarP(&labels, "label", "l", nil, "NAME=VALUE to find the snapshot by (repeatable)")
	f.BoolVar(&req.DiskOnly, "disk-only", false,
		"save the disk without memory; forks of the snapshot boot")
	f.BoolVar(&req.Encrypt, "encrypt", false,
		"encrypt the snapshot; always done if the sandbox runs from an encrypted one")
	f.BoolVarP(&figures, "verbose", "v", false, "print how much was saved, and the duration of each part")
	c.completeSandboxes(cmd)
	c.completeFlag(cmd, "parent-tag", tags)
	completeWords(cmd, "mode", "live", "diff", "full")
	c.register(cmd)
	return cmd
}

// branch makes a branch and prints it.
func branch(ctx context.Context, cmd *cobra.Command, c *common, cl *client.Client, ref string, req client.BranchRequest,
	figures bool) error {
	id, err := sandboxID(ctx, cl, ref)
	if err != nil {
		return err
	}
	s, err := cl.Branch(ctx, id, req)
	if err != nil {
		return err
	}
	return printBranch(cmd, c, s, figures)
}

func printBranch(cmd *cobra.Command, c *common, s client.Snapshot, figures bool) error {
	if c.json() {
		return writeJSON(cmd.OutOrStdout(), s)
	}
	printLine(cmd.OutOrStdout(), s.Tag)
	if figures {
		describeBranch(cmd.ErrOrStderr(), s)
	} else {
		printf(cmd.ErrOrStderr(), "forkd: branched; the sandbox was paused for %.1f ms\n", value(s.PauseMS))
	}
	if s.Fallback != "" {
		printf(cmd.ErrOrStderr(), "forkd: not live: %s\n", s.Fallback)
	}
	return nil
}

// describeBranch prints all measurements of a branch.
func describeBranch(w io.Writer, s client.Snapshot) {
	printf(w, "forkd: %s branch, the sandbox was paused for %.1f ms", s.Mode, value(s.PauseMS))
	if s.StormStopMS != nil {
		printf(w, " and %.1f ms", *s.StormStopMS)
	}
	if s.ReadyMS != nil {
		printf(w, ", usable after %.1f ms", *s.ReadyMS)
	} else {
		printf(w, ", still being written")
	}
	printf(w, "; %.1f MiB saved", float64(value(s.DirtyBytes))/(1<<20))
	if s.SharedBytes != nil {
		printf(w, ", %.1f MiB of it still in memory, shared by the sandbox and its forks",
			float64(*s.SharedBytes)/(1<<20))
	}
	printLine(w)
}

// value returns the value to which p points, or the zero value if p is nil.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func newRollbackCmd() *cobra.Command {
	var c common
	var to, unique string
	cmd := &cobra.Command{
		Use:   "rollback ID",
		Short: "Put a sandbox back to a snapshot of its family",
		Long: "Restores memory, disk and processes of the sandbox ID from the snapshot. The id does not change. The snapshot\n" +
			"must be of the sandbox's family, which comes from one booted VM: its own branches, their ancestors, and\n" +
			"branches of its copies.",
		Args: usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return showOf(cmd, &c, args[0], func(ctx context.Context, cl *client.Client, id string) (client.RolledBack, error) {
				return cl.RollbackWith(ctx, id, client.RollbackRequest{To: to, Unique: unique})
			}, func(r client.RolledBack) error {
				printRolledBack(cmd, r, r.RolledBackTo)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&to, "to", "",
		"tag of the snapshot (default: the one that the sandbox runs from, which is not its latest branch)")
	uniqueFlag(cmd, &unique)
	c.completeSandboxes(cmd)
	c.completeFlag(cmd, "to", tags)
	c.register(cmd)
	return cmd
}

func printRolledBack(cmd *cobra.Command, r client.RolledBack, at string) {
	printf(cmd.ErrOrStderr(), "forkd: %s is at %s, confirmed after %.1f ms (vCPUs running after %.1f ms)\n",
		r.ID, at, r.RollbackReadyMS, r.RollbackVMMMS)
	printRepeats(cmd, r.Sandbox)
}

func newPromoteCmd() *cobra.Command {
	var c common
	var into string
	var req client.PromoteRequest
	var remove bool
	cmd := &cobra.Command{
		Use:   "promote CHILD --into ID",
		Short: "Give a sandbox the current state of one of its copies",
		Long: "After 'forkd fork --from-sandbox ID -n 4' you have four copies. If CHILD is the one that you want to keep, this\n" +
			"command gives its memory, disk and processes to ID, which keeps its own id, name, labels and network policy.\n" +
			"The state that ID had is lost, unless you branch ID first; 'forkd rollback ID --to TAG' then returns to it.\n" +
			"CHILD keeps running, unless --rm deletes it. Both must be of one family, which comes from one booted VM.",
		Args: usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if into == "" {
				return usageError{errors.New("--into ID is missing: the sandbox that receives the state of CHILD")}
			}
			return showOf(cmd, &c, into, func(ctx context.Context, cl *client.Client, id string) (r client.RolledBack,
				err error) {
				if req.From, err = sandboxID(ctx, cl, args[0]); err != nil {
					return r, err
				}
				if r, err = cl.Promote(ctx, id, req); err == nil && remove {
					err = cl.Kill(ctx, req.From)
				}
				return r, err
			}, func(r client.RolledBack) error {
				printRolledBack(cmd, r, "the state of "+args[0])
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&into, "into", "", "the sandbox that receives the state of CHILD (required)")
	f.StringVar(&req.Tag, "tag", "", "tag of the snapshot of CHILD (default: it is deleted with the last sandbox that needs it)")
	f.StringVar(&req.Mode, "mode", "", "mode of the branch of CHILD: live (default), diff or full")
	f.BoolVar(&remove, "rm", false, "delete CHILD afterwards")
	uniqueFlag(cmd, &req.Unique)
	c.completeSandboxes(cmd)
	c.completeFlag(cmd, "into", sandboxNames)
	c.register(cmd)
	return cmd
}
