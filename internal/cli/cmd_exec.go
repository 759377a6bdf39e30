package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// maxStdin is what the API takes as the input of a command, in bytes.
const maxStdin = 8 << 20

func newExecCmd() *cobra.Command {
	var c common
	var req client.ExecRequest
	var env []string
	var stdin bool
	cmd := &cobra.Command{
		Use:   "exec ID [--] COMMAND [ARG…]",
		Short: "Run a command in a sandbox and exit with its code",
		Long: "Runs a command (no shell is involved) and passes its output on as it comes, byte for byte. Flags of forkd\n" +
			"stand before COMMAND; what follows it is the command's. The exit code is the command's, or 124 it timed\n" +
			"out, 126 it cannot be executed, 127 there is no such command, 128+n signal n ended it.",
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			id := args[0]
			if err := cmd.Flags().Parse(args[1:]); err != nil { // flags between ID and COMMAND
				return plainFlagError(err)
			}
			if help, _ := cmd.Flags().GetBool("help"); help {
				return cmd.Help()
			}
			if req.Args = cmd.Flags().Args(); len(req.Args) == 0 {
				return usageError{errors.New("COMMAND is missing")}
			}
			if req.Env, err = parseEnv(env); err != nil {
				return err
			}
			if stdin {
				if req.Stdin, err = readStdin(cmd.InOrStdin()); err != nil {
					return err
				}
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error { return c.exec(ctx, cmd, cl, id, req) })
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	timeoutFlag(f, &req.TimeoutSecs, "kill the command after so many seconds")
	f.StringArrayVarP(&env, "env", "e", nil, "NAME=VALUE for the command's environment (repeatable)")
	f.BoolVarP(&stdin, "stdin", "i", false, "pass standard input, read to its end first, at most 8 MiB, to the command")
	f.StringVar(&req.Cwd, "cwd", "", "working directory in the sandbox")
	f.StringVar(&req.User, "user", "", "user in the sandbox")
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}

func readStdin(from io.Reader) ([]byte, error) {
	p, err := io.ReadAll(io.LimitReader(from, maxStdin+1))
	if err != nil {
		return nil, fmt.Errorf("read standard input: %w", err)
	}
	if len(p) > maxStdin {
		return nil, fmt.Errorf("standard input is longer than %d bytes: copy it into the sandbox with 'forkd cp - ID:PATH'", maxStdin)
	}
	return p, nil
}

// exec runs a command and returns its code as an exitCode.
func (c *common) exec(ctx context.Context, cmd *cobra.Command, cl *client.Client, ref string, req client.ExecRequest) error {
	id, err := sandboxID(ctx, cl, ref)
	if err != nil {
		return err
	}
	if c.json() {
		r, err := cl.Exec(ctx, id, req)
		if err == nil {
			err = writeJSON(cmd.OutOrStdout(), r)
		}
		return exitWith(r.ExitCode, err)
	}
	end, err := cl.ExecStream(ctx, id, req, cmd.OutOrStdout(), cmd.ErrOrStderr())
	if err == nil && end.Error != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "forkd: %s\n", end.Error)
	}
	return exitWith(end.ExitCode, err)
}

// exitWith makes the code of what ran in a sandbox that of this program, if there was no error.
func exitWith(code int, err error) error {
	if err != nil || code == 0 {
		return err
	}
	return exitCode(code)
}
