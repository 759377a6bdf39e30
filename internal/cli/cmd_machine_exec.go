package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/internal/emu/machineapi"
	"github.com/forkd/forkd/internal/emu/tcghost"
)

// Exit codes of `machine exec` in addition to the program's own exit codes. Other tools that run
// commands remotely use the same codes.
const (
	exitTimedOut   = 124
	exitMachine    = 125 // there is no emulated host, or it has ended
	exitNotStarted = 126
	exitNotFound   = 127
	exitSignalBase = 128 // plus the signal's number
)

// execFlags are the flags of `machine exec`.
type execFlags struct {
	timeout time.Duration
	cwd     string
	env     []string
	start   bool
	copy    bool
}

func newMachineExec(open openMachine) *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec [flags] -- program [argument ...]",
		Short: "Run a program in the emulated host, with this terminal's input and output",
		Long: fmt.Sprintf("Exits with the program's exit code. When the program or this command ends, the program's child processes\n"+
			"are killed. Other exit codes: %d after a timeout, %d if there is no emulated host or it went away, %d if the\n"+
			"program cannot be started, %d if it does not exist, %d+n if signal n ended it.", exitTimedOut, exitMachine, exitNotStarted, exitNotFound, exitSignalBase),
		Args: usageArgs(func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("name the program to run after --")
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := open()
			if err != nil {
				return err
			}
			return machineExec(cmd, m, f, args)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false)
	flags.DurationVar(&f.timeout, "timeout", 0, "kill the program after this time; 0 means never")
	flags.StringVar(&f.cwd, "cwd", "", "working directory in the emulated host (default /, with --copy the program's)")
	flags.StringArrayVar(&f.env, "env", nil, "KEY=VALUE to set in the program's environment; may be repeated")
	flags.BoolVar(&f.start, "start", false, "start the emulated host first if it does not run")
	flags.BoolVar(&f.copy, "copy", false,
		"the program is a file of this host: copy it, and ./testdata, into the emulated host")
	return cmd
}

func machineExec(cmd *cobra.Command, m tcghost.Machine, f execFlags, args []string) error {
	if f.timeout < 0 {
		return usageError{fmt.Errorf("timeout %v is negative", f.timeout)}
	}
	if f.start {
		if _, err := startMachine(cmd.Context(), m, tcghost.DefaultOptions(), cmd.ErrOrStderr()); err != nil {
			return machineFailed(cmd, err)
		}
	}
	start := machineapi.ExecStart{Argv: args, Env: f.env, Dir: f.cwd, TimeoutMS: f.timeout.Milliseconds()}
	if f.copy {
		dir, program, err := m.CopyIn(args[0], "testdata")
		if err != nil {
			return machineFailed(cmd, err)
		}
		defer os.RemoveAll(dir)
		start.Argv = append([]string{program}, args[1:]...)
		if start.Dir == "" {
			start.Dir = dir
		}
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	defer signal.Stop(signals)
	exit, err := m.Exec(context.WithoutCancel(cmd.Context()), start,
		tcghost.Stdio{In: cmd.InOrStdin(), Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr(), Signals: signals})
	if err != nil {
		return machineFailed(cmd, err)
	}
	return execResult(cmd, f, exit)
}

// machineFailed reports a failure of the emulated host, not of the program.
func machineFailed(cmd *cobra.Command, err error) error {
	printf(cmd.ErrOrStderr(), "forkd: %v\n", err)
	return exitCode(exitMachine)
}

// execResult converts the end of the program to an exit code. If the code alone is ambiguous, it
// prints a message.
func execResult(cmd *cobra.Command, f execFlags, exit machineapi.ExecExit) error {
	say := func(err error) { printf(cmd.ErrOrStderr(), "forkd: %v\n", err) }
	switch {
	case exit.Error != "":
		say(errors.New(exit.Error))
		if exit.NotFound {
			return exitCode(exitNotFound)
		}
		return exitCode(exitNotStarted)
	case exit.TimedOut:
		say(fmt.Errorf("timed out after %v, killed", f.timeout))
		return exitCode(exitTimedOut)
	case exit.Signal != 0:
		say(fmt.Errorf("killed by signal %d (%v)", exit.Signal, syscall.Signal(exit.Signal)))
		return exitCode(exitSignalBase + exit.Signal)
	case exit.Code != 0:
		return exitCode(exit.Code)
	}
	return nil
}
