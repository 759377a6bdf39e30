package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/forkd/forkd/client"
)

// command is a command to run in a sandbox, with its inputs and outputs on this host.
type command struct {
	req      client.ExecRequest
	env      []string
	envFiles []string
	stdin    bool
	tty      bool
	detach   bool
	bound    bool // the process is killed when this program exits, so there are no keys to detach

	flags *pflag.FlagSet
}

// errNoJSON refuses -o json for commands that print the sandbox's output as it arrives.
var errNoJSON = usageError{errors.New("-o json: not possible here: output is passed on as it arrives")}

func (c *command) register(f *pflag.FlagSet, timeoutUsage string) {
	f.SetInterspersed(false)
	timeoutFlag(f, &c.req.TimeoutSecs, timeoutUsage)
	c.registerEnv(f)
	f.BoolVarP(&c.stdin, "stdin", "i", false, "pass standard input to the command as it arrives")
	f.BoolVarP(&c.tty, "tty", "t", false, "give the command a terminal")
	f.BoolVarP(&c.detach, "detach", "d", false, "print the id of the process and leave it running")
}

// registerEnv registers the flags for the environment of the command in the sandbox.
func (c *command) registerEnv(f *pflag.FlagSet) {
	c.flags = f
	f.StringArrayVarP(&c.env, "env", "e", nil, "NAME=VALUE for the command's environment (repeatable)")
	f.StringArrayVar(&c.envFiles, "env-file", nil, "file with a NAME=VALUE on each line (repeatable)")
	f.StringVarP(&c.req.Cwd, "cwd", "w", "", "working directory in the sandbox")
	f.StringVarP(&c.req.User, "user", "u", "", "user in the sandbox")
}

// parse parses the flags between the first argument and COMMAND. If help was requested and has been
// printed, it returns true for done.
func (c *command) parse(cmd *cobra.Command, args []string) (done bool, err error) {
	if err := c.flags.Parse(args); err != nil {
		return false, flagError(cmd, err)
	}
	if help, _ := c.flags.GetBool("help"); help {
		return true, cmd.Help()
	}
	c.req.Args = c.flags.Args()
	return false, emptyFlag(c.flags)
}

// prepare makes the request from the flags. If json is true, the output is collected instead of
// printed.
func (c *command) prepare(cmd *cobra.Command, json bool) (err error) {
	if json && (c.stdin || c.tty) {
		return usageError{errors.New("-o json shows the whole output at the end: it goes without --stdin and --tty")}
	}
	if c.detach && (c.stdin || c.tty) {
		return usageError{errors.New("--detach goes without --stdin and --tty: attach to the process ('forkd attach')")}
	}
	if c.req.Env, err = readEnv(c.envFiles, c.env); err != nil {
		return err
	}
	c.req.OpenStdin = c.stdin
	if c.tty {
		c.req.TTY = &client.TTYSize{}
		if size, ok := terminalSize(cmd.OutOrStdout()); ok {
			c.req.TTY = &size
		}
		if name := os.Getenv("TERM"); name != "" && c.req.Env["TERM"] == "" {
			c.req.Env["TERM"] = name
		}
	}
	given := c.flags.Changed("timeout")
	if !given && (c.stdin || c.tty || c.detach) {
		c.req.TimeoutSecs = 0
	}
	return nil
}

// readEnv returns the variables in the NAME=VALUE lines of the given files, and in the given pairs.
func readEnv(files, pairs []string) (map[string]string, error) {
	var all []string
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		for n := 1; lines.Scan(); n++ {
			line := strings.TrimSuffix(lines.Text(), "\r")
			if text := strings.TrimSpace(line); text == "" || strings.HasPrefix(text, "#") {
				continue
			}
			if name, _, ok := strings.Cut(line, "="); !ok || name == "" {
				return nil, usageError{fmt.Errorf("%s: line %d: want NAME=VALUE", f.Name(), n)}
			}
			all = append(all, line)
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return parseEnv(append(all, pairs...))
}

// runIn runs the command in a sandbox with this program's input and output. It returns the
// command's exit code as an exitCode.
func (c *command) runIn(ctx context.Context, cmd *cobra.Command, cl *client.Client, id string) error {
	if c.detach {
		pid, err := cl.ExecDetached(ctx, id, c.req)
		if err == nil {
			printLine(cmd.OutOrStdout(), pid)
		}
		return err
	}
	p, err := cl.StartExec(ctx, id, c.req)
	var none *client.NotStartedError
	if errors.As(err, &none) {
		hint := ""
		if none.ExitCode == exitNotFound && len(c.req.Args) == 1 && strings.Contains(c.req.Args[0], " ") {
			hint = " (for a whole line: sh -c '…')"
		}
		printf(cmd.ErrOrStderr(), "forkd: %s%s\n", none, hint)
		return exitWith(none.ExitCode, nil)
	}
	if err != nil {
		return err
	}
	return c.follow(cmd, id, p)
}

// follow connects a process of a sandbox to this program's input and output until the process
// exits. It returns the process's exit code as an exitCode.
func (c *command) follow(cmd *cobra.Command, id string, p *client.Process) error {
	input, giveBack := cmd.InOrStdin(), func() {}
	if c.tty {
		var keys io.Reader
		if c.stdin { // without stdin, this program does not read keys, and Ctrl-C interrupts it as usual
			keys = input
		}
		terminal, err := openTerminal(keys, cmd.OutOrStdout(), func(size client.TTYSize) { _ = p.Resize(size) })
		if err != nil {
			return err
		}
		giveBack = terminal.close
		if !c.bound {
			input = &detachKeys{from: input, detach: func() { _ = p.Detach() }}
		}
	}
	if c.stdin {
		go feedStdin(p, input)
	}
	end, err := p.Wait(cmd.OutOrStdout(), cmd.ErrOrStderr())
	giveBack()
	if errors.Is(err, client.ErrDetached) {
		printf(cmd.ErrOrStderr(), "forkd: process %d keeps running; to return to it: forkd attach -it %s %d\n", p.PID, id, p.PID)
		return nil
	}
	if err == nil && end.Error != "" {
		printf(cmd.ErrOrStderr(), "forkd: %s\n", end.Error)
	}
	return exitWith(end.ExitCode, err)
}

// inputChunk is the size of one read of standard input, in bytes.
const inputChunk = 128 << 10

// feedStdin sends standard input to the process, until the end of the input or until the process
// accepts no more input. A read may continue after the process has exited.
func feedStdin(p *client.Process, from io.Reader) {
	for buf := make([]byte, inputChunk); ; {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := p.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if !errors.Is(err, client.ErrDetached) {
				_ = p.CloseStdin() // fails only if the process has exited
			}
			return
		}
	}
}
