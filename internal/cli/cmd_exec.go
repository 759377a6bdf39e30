package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// exitCodes documents the exit codes of commands that run a program in a sandbox.
const exitCodes = "The exit code is the command's, or 124 after a timeout, 126 if the command cannot be executed, 127 if it does\n" +
	"not exist, 128+n if signal n ended it."

func newExecCmd() *cobra.Command {
	c := common{streams: true}
	var run command
	cmd := &cobra.Command{
		Use:   "exec ID [--] COMMAND [ARG…]",
		Short: "Run a command in a sandbox and exit with its code",
		Long: "Runs a command (without a shell) and streams its output byte for byte. Flags of forkd go before COMMAND;\n" +
			"later flags belong to the command. Ctrl-C kills the command and its child processes. With -it, Ctrl-C\n" +
			"goes to the command like any other key, and Ctrl-P Ctrl-Q detaches.\n" + exitCodes,
		Args: usageArgs(arguments(1, anyNumber)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if done, err := run.parse(cmd, args[1:]); done || err != nil {
				return err
			}
			if len(run.req.Args) == 0 {
				return usageError{fmt.Errorf("COMMAND is missing: 'forkd shell %s' starts a shell", args[0])}
			}
			if err := run.prepare(cmd, c.json()); err != nil {
				return err
			}
			return c.runOn(cmd, args[0], func(ctx context.Context, cl *client.Client, id string) error {
				return c.runCommand(ctx, cmd, cl, &run, id)
			})
		},
	}
	run.register(cmd.Flags(), "kill the command after this many seconds (no limit with -i, -t and -d)")
	noEffect(cmd.Flags(), "privileged", "", "of docker; no effect: root may do anything in a sandbox")
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}

// runCommand runs a command in a sandbox and returns the command's exit code as an exitCode.
func (c *common) runCommand(ctx context.Context, cmd *cobra.Command, cl *client.Client, run *command, id string) error {
	switch {
	case run.detach && c.json():
		pid, err := cl.ExecDetached(ctx, id, run.req)
		if err == nil {
			err = writeJSON(cmd.OutOrStdout(), map[string]any{"pid": pid})
		}
		return err
	case !c.json():
		return run.runIn(ctx, cmd, cl, id)
	}
	r, err := cl.Exec(ctx, id, run.req)
	if err == nil {
		err = writeJSON(cmd.OutOrStdout(), r)
	}
	return exitWith(r.ExitCode, err)
}

// exitWith returns the exit code of a command in a sandbox as the exit code of this process. If err
// is not nil, it returns err.
func exitWith(code int, err error) error {
	if err != nil || code == 0 {
		return err
	}
	return exitCode(code)
}

// shellArgs returns a command that starts the best shell that a sandbox has.
func shellArgs() []string {
	return []string{"/bin/sh", "-c", `command -v bash >/dev/null && exec bash -l; exec sh -l`}
}

func newShellCmd() *cobra.Command {
	c := common{streams: true}
	var run command
	cmd := &cobra.Command{
		Use:   "shell ID",
		Short: "Work in a sandbox with a shell",
		Long: "Starts bash, or sh if there is none, as a login shell: with a terminal if forkd has one, and otherwise for commands\n" +
			"from standard input. Ctrl-P Ctrl-Q detaches from it (forkd attach -it). The exit code is the shell's.",
		Args: usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.json() {
				return errNoJSON
			}
			run.interactive(cmd)
			if err := run.prepare(cmd, false); err != nil {
				return err
			}
			return c.runOn(cmd, args[0], func(ctx context.Context, cl *client.Client, id string) error {
				return run.runIn(ctx, cmd, cl, id)
			})
		},
	}
	run.registerEnv(cmd.Flags())
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}

// interactive makes c run a shell for the user of this terminal.
func (c *command) interactive(cmd *cobra.Command) {
	c.req.Args, c.stdin = shellArgs(), true
	c.tty = isTerminal(cmd.OutOrStdout()) && isTerminalInput(cmd.InOrStdin())
}

func newAttachCmd() *cobra.Command {
	c := common{streams: true}
	var run command
	cmd := &cobra.Command{
		Use:   "attach ID [PID]",
		Short: "Follow a process that exec started in a sandbox",
		Long: "Prints the output of a process (forkd ls ID lists them; without PID the only one) from now on, and exits\n" +
			"with its code. Ctrl-C detaches from the process, which keeps running. With -it the process gets this\n" +
			"terminal, and Ctrl-P Ctrl-Q detaches.",
		Args: usageArgs(arguments(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.json() {
				return errNoJSON
			}
			var pid uint32
			if len(args) == 2 {
				var err error
				if pid, err = parsePID(args[1]); err != nil {
					return err
				}
			}
			return c.runOn(cmd, args[0], func(ctx context.Context, cl *client.Client, id string) (err error) {
				if pid == 0 {
					if pid, err = onlyProcess(ctx, cl, id); err != nil {
						return err
					}
				}
				p, err := cl.Attach(ctx, id, pid)
				if err != nil {
					return err
				}
				return run.follow(cmd, id, p)
			})
		},
	}
	cmd.Flags().BoolVarP(&run.stdin, "stdin", "i", false, "pass standard input to the process as it arrives")
	cmd.Flags().BoolVarP(&run.tty, "tty", "t", false, "the process has a terminal: forward all keys and the terminal's size")
	c.completeProcess(cmd)
	c.register(cmd)
	return cmd
}

// onlyProcess returns the process that exec has started in a sandbox. If there is none, or more
// than one, it returns an error.
func onlyProcess(ctx context.Context, cl *client.Client, id string) (pid uint32, err error) {
	list, err := cl.Processes(ctx, id)
	switch {
	case err != nil:
		return 0, err
	case len(list) == 0:
		return 0, fmt.Errorf("no process of 'forkd exec' runs in %s: 'forkd shell %s' starts a shell", id, id)
	case len(list) > 1:
		return 0, fmt.Errorf("%d processes run in %s: name one of those that 'forkd ls %s' lists", len(list), id, id)
	}
	return list[0].PID, nil
}

func newSignalCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "signal ID PID [SIGNAL]",
		Short: "Send a signal to a process that exec started in a sandbox",
		Long:  "Sends SIGNAL, such as INT or SIGKILL (default TERM), to a process and its group. forkd ls ID lists processes.",
		Args:  usageArgs(arguments(2, 3)),
		RunE: func(cmd *cobra.Command, args []string) error {
			pid, err := parsePID(args[1])
			if err != nil {
				return err
			}
			name := "TERM"
			if len(args) == 3 {
				name = args[2]
			}
			return c.runOn(cmd, args[0], func(ctx context.Context, cl *client.Client, id string) error {
				if err := cl.SignalProcess(ctx, id, pid, name); err != nil || !c.json() {
					return err
				}
				return writeJSON(cmd.OutOrStdout(), map[string]any{"id": id, "pid": pid, "signal": name})
			})
		},
	}
	c.completeProcess(cmd)
	c.register(cmd)
	return cmd
}

func parsePID(text string) (uint32, error) {
	pid, err := strconv.ParseUint(text, 10, 31)
	if err != nil || pid == 0 {
		return 0, usageError{fmt.Errorf("PID %q: want the number of a process", text)}
	}
	return uint32(pid), nil
}
