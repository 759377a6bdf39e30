package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newWorkspaceCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "workspace",
		Short: "Named sandboxes that are suspended and resumed",
		Args:  usageArgs(knownCommand),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	suspend := newWorkspaceOpCmd("suspend", "Save a workspace to disk and free its memory",
		(*client.Client).SuspendWorkspace)
	noEffect(suspend.Flags(), "diff", "", "of forkd 0.5; no effect: only what was written is saved")
	cmd.AddCommand(newWorkspaceCreateCmd(), newWorkspaceListCmd(), newWorkspaceDeleteCmd(), suspend,
		newWorkspaceOpCmd("resume", "Resume a workspace", (*client.Client).ResumeWorkspace))
	return cmd
}

func printWorkspaces(cmd *cobra.Command, list ...client.Workspace) error {
	return table(cmd, "NAME\tSTATUS\tSANDBOX\tSNAPSHOT\tACTIVE", func(row func(...any)) {
		for _, w := range list {
			id := w.LiveSandboxID
			if id == "" {
				id = "-"
			}
			row(w.Name, w.Status, id, w.SourceTag, age(w.LastActive))
		}
	})
}

func newWorkspaceCreateCmd() *cobra.Command {
	var c common
	var req client.WorkspaceRequest
	var labels []string
	var network networkFlags
	var limits limitFlags
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Start a sandbox with a name",
		Long:  "Prints the name. Commands accept it in place of a sandbox's id, and it stays the same if the id changes.",
		Args:  usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = args[0]
			if req.SnapshotTag == "" {
				return usageError{errors.New("say what to start from: --snapshot TAG ('forkd images' lists snapshots)")}
			}
			var err error
			if req.Network, err = network.given(); err != nil {
				return err
			}
			if req.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			req.Limits = limits.given()
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (client.Workspace, error) {
				return cl.CreateWorkspace(ctx, req)
			}, func(w client.Workspace) error {
				printLine(cmd.OutOrStdout(), w.Name)
				printf(cmd.ErrOrStderr(), "forkd: workspace %s runs in %s\n", w.Name, w.LiveSandboxID)
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.SnapshotTag, "snapshot", "", "the snapshot to start from")
	noEffect(f, "per-child-netns", "", "of forkd 0.5; no effect: every sandbox has a network of its own")
	f.Var((*secondsValue)(&req.IdleTimeoutSecs), "idle-timeout-secs",
		"suspend after this many seconds without a request; 0: never")
	labelFlag(f, &labels)
	network.register(f)
	limits.register(f)
	c.completeFlag(cmd, "snapshot", tags)
	c.register(cmd)
	return cmd
}

func newWorkspaceListCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List workspaces",
		Args:    usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) ([]client.Workspace, error) {
				return cl.Workspaces(ctx)
			}, func(list []client.Workspace) error {
				return printWorkspaces(cmd, list...)
			})
		},
	}
	c.register(cmd)
	return cmd
}

func newWorkspaceOpCmd(verb, short string, op func(*client.Client, context.Context, string) (client.Workspace,
	error)) *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   verb + " NAME",
		Short: short,
		Args:  usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (client.Workspace, error) {
				return op(cl, ctx, args[0])
			}, func(w client.Workspace) error {
				return printWorkspaces(cmd, w)
			})
		},
	}
	c.complete(cmd, workspaceNames)
	c.register(cmd)
	return cmd
}

func newWorkspaceDeleteCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:     "delete NAME",
		Aliases: []string{"rm"},
		Short:   "Remove a workspace and its sandbox",
		Args:    usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (map[string]string, error) {
				return map[string]string{"deleted": args[0]}, cl.DeleteWorkspace(ctx, args[0])
			}, func(map[string]string) error {
				printf(cmd.ErrOrStderr(), "forkd: workspace %s deleted\n", args[0])
				return nil
			})
		},
	}
	c.complete(cmd, workspaceNames)
	c.register(cmd)
	return cmd
}
