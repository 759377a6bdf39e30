package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newEvalCmd() *cobra.Command {
	var c common
	var req client.EvalRequest
	cmd := &cobra.Command{
		Use:   "eval ID [CODE…]",
		Short: "Evaluate code in the warm interpreter of a sandbox",
		Long: "Evaluates CODE (read from standard input if there is none) and prints its output and the value of its last\n" +
			"expression. The exit code is 1 after an exception and 124 after a timeout.",
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Code = strings.Join(args[1:], " ")
			if len(args) == 1 {
				p, err := io.ReadAll(cmd.InOrStdin())
				if err != nil {
					return fmt.Errorf("read code: %w", err)
				}
				req.Code = string(p)
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				r, err := cl.Eval(ctx, args[0], req)
				if err != nil {
					return err
				}
				if c.json() {
					err = writeJSON(cmd.OutOrStdout(), r)
				} else {
					printEval(cmd.OutOrStdout(), cmd.ErrOrStderr(), r)
				}
				if err == nil && r.ExitCode != 0 {
					return exitCode(r.ExitCode)
				}
				return err
			})
		},
	}
	cmd.Flags().Float64Var(&req.TimeoutSecs, "timeout-secs", 30, "interrupt the code after so many seconds")
	cmd.Flags().StringVar(&req.Language, "language", "", "language of the interpreter (default python)")
	c.register(cmd)
	return cmd
}

func printEval(out, errOut io.Writer, r client.EvalResult) {
	io.WriteString(out, r.Stdout)
	io.WriteString(errOut, r.Stderr)
	if r.Result != nil {
		fmt.Fprintln(out, *r.Result)
	}
	switch {
	case r.Traceback != "":
		fmt.Fprintln(errOut, strings.TrimRight(r.Traceback, "\n"))
	case r.Error != "":
		fmt.Fprintf(errOut, "forkd: %s\n", r.Error)
	}
}
