package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newPauseCmd() *cobra.Command {
	return newStateCmd("pause", "Stop the vCPUs of sandboxes",
		"Paused sandboxes keep their memory. 'forkd resume' continues them.",
		func(ctx context.Context, cl *client.Client, id string) (client.Sandbox, error) {
			return cl.Pause(ctx, id)
		})
}

func newResumeCmd() *cobra.Command {
	var cmd *cobra.Command
	var unique string
	cmd = newStateCmd("resume", "Continue paused sandboxes, or restore suspended ones", "The ids do not change.",
		func(ctx context.Context, cl *client.Client, id string) (client.Sandbox, error) {
			s, err := cl.ResumeWith(ctx, id, client.ResumeRequest{Unique: unique})
			if err == nil {
				printRepeats(cmd, s)
			}
			return s, err
		})
	uniqueFlag(cmd, &unique)
	cmd.Aliases = []string{"start", "unpause"}
	return cmd
}

func newSuspendCmd() *cobra.Command {
	var c common
	var all bool
	var req client.SuspendRequest
	var within time.Duration
	cmd := &cobra.Command{
		Use:     "suspend ID… | --all",
		Aliases: []string{"stop"},
		Short:   "Save sandboxes to disk and free their memory",
		Long: "'forkd resume' restores them under the same ids, even after a restart of the host. --all saves " +
			"them in parallel. It gives up when no sandbox has been saved for two minutes, or at the end of --within.",
		Args: func(_ *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usageError{errors.New("name sandboxes, or give --all: one of the two")}
			}
			if within < 0 || within > 0 && !all {
				return usageError{errors.New("--within: want a time such as 4m30s, together with --all")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, ids []string) error {
			text := func(s client.Sandbox) string { return s.ID + " " + s.State }
			if !all {
				return eachSandbox(cmd, &c, ids, func(ctx context.Context, cl *client.Client, id string) (client.Sandbox, error) {
					return cl.SuspendWith(ctx, id, req)
				}, text)
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				a := newSuspendAll(cl, within)
				a.req = req
				ctx, cancel := a.bound(ctx)
				defer cancel()
				list, err := cl.Sandboxes(ctx)
				if err != nil {
					return err
				}
				owners := make(map[string]string)
				for _, s := range list {
					if s.State != "suspended" && s.State != "exited" && s.State != "stopping" {
						ids, owners[s.ID] = append(ids, s.ID), s.Owner
						a.turns.expect(s.Owner)
					}
				}
				return eachOf(cmd, &c, -1, ids, func(id string) (client.Sandbox, error) { return a.suspend(ctx, owners[id], id) },
					text, func(all []client.Sandbox) any { return all })
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all sandboxes that have not exited, including those of workspaces")
	cmd.Flags().DurationVar(&within, "within", 0,
		"with --all: keep trying for this time, such as 4m30s, then give up; 0: see above")
	cmd.Flags().BoolVar(&req.Encrypt, "encrypt", false,
		"encrypt the saved states; always done if a sandbox runs from an encrypted snapshot")
	noEffectTime(cmd.Flags(), "time", "t", "of docker; no effect: nothing in the sandbox is ended")
	noEffectTime(cmd.Flags(), "timeout", "", "of docker; no effect: nothing in the sandbox is ended")
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}

// newStateCmd makes a command that changes the state of each named sandbox with op.
func newStateCmd(verb, short, long string, op func(context.Context, *client.Client, string) (client.Sandbox,
	error)) *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use: verb + " ID…", Short: short, Long: long, Args: usageArgs(arguments(1, anyNumber)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			return eachSandbox(cmd, &c, ids, op, func(s client.Sandbox) string { return s.ID + " " + s.State })
		},
	}
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}
