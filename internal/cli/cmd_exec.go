package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newExecCmd() *cobra.Command {
	var c common
	var req client.ExecRequest
	var env []string
	cmd := &cobra.Command{
		Use:   "exec ID -- COMMAND [ARG…]",
		Short: "Run a command in a sandbox and exit with its code",
		Long: "Runs a command (no shell is involved) and prints its output. The exit code is the command's, or\n" +
			"124 it timed out, 126 it cannot be executed, 127 there is no such command, 137 it was killed.",
		Args: usageArgs(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if req.Env, err = parseEnv(env); err != nil {
				return err
			}
			req.Args = args[1:]
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				r, err := cl.Exec(ctx, args[0], req)
				if err != nil {
					return err
				}
				if c.json() {
					err = writeJSON(cmd.OutOrStdout(), r)
				} else {
					io.WriteString(cmd.OutOrStdout(), r.Stdout)
					io.WriteString(cmd.ErrOrStderr(), r.Stderr)
					if r.Error != "" {
						fmt.Fprintf(cmd.ErrOrStderr(), "forkd: %s\n", r.Error)
					}
				}
				if err == nil && r.ExitCode != 0 {
					return exitCode(r.ExitCode)
				}
				return err
			})
		},
	}
	f := cmd.Flags()
	f.Float64Var(&req.TimeoutSecs, "timeout-secs", 30, "kill the command after so many seconds")
	f.StringArrayVarP(&env, "env", "e", nil, "NAME=VALUE for the command's environment (repeatable)")
	f.StringVar(&req.Cwd, "cwd", "", "working directory in the sandbox")
	f.StringVar(&req.User, "user", "", "user in the sandbox")
	c.register(cmd)
	return cmd
}
