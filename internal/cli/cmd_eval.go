package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newEvalCmd() *cobra.Command {
	var c common
	var req client.EvalRequest
	var interrupt, restart bool
	cmd := &cobra.Command{
		Use:   "eval ID [CODE…] | --interrupt ID | --restart ID",
		Short: "Evaluate code in the warm interpreter of a sandbox",
		Long: "Evaluates CODE (read from standard input if there is none or it is -) and prints its output and the value of its last\n" +
			"expression. The exit code is 1 after an exception and 124 after a timeout.",
		Args: usageArgs(arguments(1, anyNumber)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if interrupt || restart {
				if interrupt && restart || len(args) > 1 {
					return usageError{errors.New("--interrupt and --restart stand alone, without CODE")}
				}
				return c.stopEval(cmd, args[0], restart)
			}
			req.Code = strings.Join(args[1:], " ")
			if len(args) == 1 || len(args) == 2 && args[1] == "-" {
				p, err := io.ReadAll(cmd.InOrStdin())
				if err != nil {
					return fmt.Errorf("read code: %w", err)
				}
				req.Code = string(p)
			}
			return c.runOn(cmd, args[0], func(ctx context.Context, cl *client.Client, id string) error {
				r, err := cl.Eval(ctx, id, req)
				if err != nil {
					return err
				}
				if c.json() {
					err = writeJSON(cmd.OutOrStdout(), r)
				} else {
					printEval(cmd.OutOrStdout(), cmd.ErrOrStderr(), r)
				}
				return exitWith(r.ExitCode, err)
			})
		},
	}
	timeoutFlag(cmd.Flags(), &req.TimeoutSecs, "interrupt the code after this many seconds")
	cmd.Flags().StringVar(&req.Language, "language", "",
		"language: python, javascript, typescript or bash (default python)")
	cmd.Flags().BoolVar(&interrupt, "interrupt", false, "interrupt the code that another call runs; the code may continue")
	cmd.Flags().BoolVar(&restart, "restart", false, "replace the interpreter: its code ends and its variables are lost")
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}

// stopEval interrupts the interpreter of a sandbox, or restarts it.
func (c *common) stopEval(cmd *cobra.Command, ref string, restart bool) error {
	return showOf(cmd, c, ref, func(ctx context.Context, cl *client.Client, id string) (map[string]bool, error) {
		if restart {
			return map[string]bool{"restarted": true}, cl.RestartEval(ctx, id, "")
		}
		ran, err := cl.InterruptEval(ctx, id, "")
		return map[string]bool{"interrupted": ran}, err
	}, func(did map[string]bool) error {
		switch {
		case restart:
			printLine(cmd.ErrOrStderr(), "forkd: the interpreter is a new one, without the earlier variables")
		case !did["interrupted"]:
			printLine(cmd.ErrOrStderr(), "forkd: no code was running in the interpreter")
		}
		return nil
	})
}

func printEval(out, errOut io.Writer, r client.EvalResult) {
	io.WriteString(out, r.Stdout)
	io.WriteString(errOut, r.Stderr)
	if r.Result != nil {
		io.WriteString(out, *r.Result+"\n")
	}
	switch {
	case r.Traceback != "":
		io.WriteString(errOut, strings.TrimRight(r.Traceback, "\n")+"\n")
	case r.Error != "":
		printf(errOut, "forkd: %s\n", multiline(r.Error))
	}
}
