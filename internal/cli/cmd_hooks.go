package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/forkd/forkd/client"
)

// hookNames are the names of a sandbox's hooks, in the order in which commands print them.
func hookNames() []string {
	return []string{"before_branch", "after_fork", "before_suspend", "after_resume"}
}

// hookOf returns the field of h for a name, or nil for an unknown name.
func hookOf(h *client.Hooks, name string) **client.Hook {
	switch name {
	case "before_branch":
		return &h.BeforeBranch
	case "after_fork":
		return &h.AfterFork
	case "before_suspend":
		return &h.BeforeSuspend
	case "after_resume":
		return &h.AfterResume
	}
	return nil
}

// hookFlags are the flags for hooks of a sandbox.
type hookFlags struct {
	hooks     []string
	timeout   float64 // seconds
	onFailure string
}

func (h *hookFlags) register(cmd *cobra.Command, f *pflag.FlagSet) {
	f.StringArrayVar(&h.hooks, "hook", nil,
		"NAME=COMMAND: a hook for /bin/sh -c; NAME is before_branch, after_fork, before_suspend or after_resume (repeatable)")
	f.Var((*secondsValue)(&h.timeout), "hook-timeout",
		"time limit of each --hook, in whole seconds up to 300, or a time such as 2m; 0: 30 seconds")
	f.StringVar(&h.onFailure, "hook-failure", "", "what the operation does if a --hook fails: abort (default) or continue")
	completeWords(cmd, "hook-failure", "abort", "continue")
}

// given returns the hooks that the flags set, or nil if no hook is set.
func (h *hookFlags) given() (*client.Hooks, error) {
	if len(h.hooks) == 0 {
		if h.timeout != 0 || h.onFailure != "" {
			return nil, usageError{errors.New("--hook-timeout and --hook-failure: want at least one --hook")}
		}
		return nil, nil
	}
	if h.timeout != math.Trunc(h.timeout) {
		return nil, usageError{fmt.Errorf("--hook-timeout %v: want whole seconds", h.timeout)}
	}
	var hooks client.Hooks
	for _, text := range h.hooks {
		name, command, _ := strings.Cut(text, "=")
		hook := hookOf(&hooks, name)
		switch {
		case hook == nil:
			return nil, usageError{fmt.Errorf("--hook %.70q: want NAME=COMMAND with a NAME among %s", text,
				strings.Join(hookNames(), ", "))}
		case command == "":
			return nil, usageError{fmt.Errorf("--hook %.70q: the command is missing", text)}
		case *hook != nil:
			return nil, usageError{fmt.Errorf("--hook %s: given twice", name)}
		}
		*hook = &client.Hook{Args: []string{"/bin/sh", "-c", command}, TimeoutSecs: int(h.timeout),
			OnFailure: h.onFailure}
	}
	return &hooks, nil
}

func newHooksCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "hooks ID",
		Short: "Show the commands that run before branches or after forks of a sandbox",
		Long: "Shows the hooks of a sandbox: commands that the daemon runs in it before a branch, in its children after\n" +
			"their fork, before a suspension, and after a resumption. Branches and their children inherit them.\n" +
			"'forkd hook' is another command: it saves an agent's workspace after each turn.",
		Args: usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return showOf(cmd, &c, args[0], func(ctx context.Context, cl *client.Client, id string) (client.Hooks, error) {
				return cl.Hooks(ctx, id)
			}, func(h client.Hooks) error { return printHooks(cmd, h) })
		},
	}
	c.completeSandboxes(cmd)
	c.register(cmd)
	cmd.AddCommand(newHooksSetCmd())
	return cmd
}

func newHooksSetCmd() *cobra.Command {
	var c common
	var h hookFlags
	cmd := &cobra.Command{
		Use:   "set ID",
		Short: "Replace the hooks of a sandbox",
		Long:  "Replaces all hooks, in any state of the sandbox. A hook that is not given here is removed.",
		Example: "  forkd hooks set sb-1 --hook before_branch='redis-cli save' --hook-timeout 10s\n" +
			"  forkd hooks set sb-1   # removes all hooks",
		Args: usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			given, err := h.given()
			if err != nil {
				return err
			}
			var hooks client.Hooks
			if given != nil {
				hooks = *given
			}
			return showOf(cmd, &c, args[0], func(ctx context.Context, cl *client.Client, id string) (client.Hooks, error) {
				return cl.SetHooks(ctx, id, hooks)
			}, func(h client.Hooks) error { return printHooks(cmd, h) })
		},
	}
	h.register(cmd, cmd.Flags())
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}

func printHooks(cmd *cobra.Command, hooks client.Hooks) error {
	return table(cmd, "HOOK\tTIMEOUT\tON FAILURE\tCOMMAND", func(row func(...any)) {
		for _, name := range hookNames() {
			if h := *hookOf(&hooks, name); h != nil {
				row(name, fmt.Sprintf("%d s", h.TimeoutSecs), h.OnFailure, fmt.Sprintf("%q", h.Args))
			}
		}
	})
}
