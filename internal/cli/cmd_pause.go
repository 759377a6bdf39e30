package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newPauseCmd() *cobra.Command {
	return newStateCmd("pause", "Stop the vCPUs of sandboxes",
		"They keep their memory; 'forkd resume' lets them run on.",
		func(ctx context.Context, cl *client.Client, id string) (client.Sandbox, error) {
			return cl.Pause(ctx, id)
		})
}

func newResumeCmd() *cobra.Command {
	var cmd *cobra.Command
	var unique string
	cmd = newStateCmd("resume", "Continue paused sandboxes, or restore suspended ones", "They keep their ids.",
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
	cmd := newStateCmd("suspend", "Save sandboxes to disk and free their memory",
		"'forkd resume' restores them under the same ids, even after a restart of the host.",
		func(ctx context.Context, cl *client.Client, id string) (client.Sandbox, error) {
			return cl.Suspend(ctx, id)
		})
	cmd.Aliases = []string{"stop"}
	noEffectTime(cmd.Flags(), "time", "t", "of docker; no effect: nothing in the sandbox is ended")
	noEffectTime(cmd.Flags(), "timeout", "", "of docker; no effect: nothing in the sandbox is ended")
	return cmd
}

// newStateCmd makes a command that puts each of the named sandboxes into another state.
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
