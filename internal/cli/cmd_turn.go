package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// defaultKeep is how many turns of a workspace are kept.
const defaultKeep = 20

// workspaceEnv is the variable with the default workspace of the commands for turns.
const workspaceEnv = "FORKD_WORKSPACE"

// workspaceFlag registers --workspace for a command for turns.
func workspaceFlag(c *common, cmd *cobra.Command, to *string) {
	cmd.Flags().StringVarP(to, "workspace", "w", "",
		"the workspace, or the id of a sandbox; default $"+workspaceEnv+", or the only workspace")
	c.completeFlag(cmd, "workspace", sandboxNames)
}

// chooseWorkspace returns the workspace that the user has named or, if the user has named none, the
// only workspace that exists.
func chooseWorkspace(ctx context.Context, cl *client.Client, named string) (string, error) {
	if named = cmp.Or(named, os.Getenv(workspaceEnv)); named != "" {
		return named, nil
	}
	list, err := cl.Workspaces(ctx)
	if err != nil {
		return "", err
	}
	if len(list) != 1 {
		return "", usageError{fmt.Errorf("there are %d workspaces: name one by --workspace or $%s "+
			"('forkd workspace list' lists them)", len(list), workspaceEnv)}
	}
	return list[0].Name, nil
}

// turnOptions are the flags of `forkd turn`.
type turnOptions struct {
	common
	workspace string
	hook      string
	event     turnEvent
	keep      int
	timeout   float64
	strict    bool
	noPrompt  bool
}

func newTurnCmd() *cobra.Command {
	o := &turnOptions{timeout: 10}
	cmd := &cobra.Command{
		Use:   "turn [EVENT]",
		Short: "Save the state of a workspace after a turn of an agent",
		Long: "Branches the sandbox of a workspace if it has changed since the last turn, and removes the oldest turns.\n" +
			"Hooks of agents call it ('forkd hook' installs them). With --hook it never fails the agent's turn: it\n" +
			"always exits with 0, prints errors on standard error, and takes at most --timeout.",
		Example: "  forkd turn --workspace desk --prompt 'add a test'    # at the end of a turn of any agent",
		Args:    cobra.ArbitraryArgs,
		RunE:    o.run,
	}
	f := cmd.Flags()
	workspaceFlag(&o.common, cmd, &o.workspace)
	f.StringVar(&o.hook, "hook", "",
		"the agent that calls this hook: claude-code (the event is on standard input), codex (in the argument) or generic")
	f.StringVar(&o.event.text, "prompt", "", "the agent's prompt; its first words are saved")
	f.StringVar(&o.event.session, "session", "", "the agent's session")
	f.StringVar(&o.event.id, "turn", "",
		"the agent's name for the turn; a second call with it and the same --session saves nothing")
	f.IntVar(&o.keep, "keep", defaultKeep, "number of the workspace's turns to keep; 0: all")
	f.Var((*secondsValue)(&o.timeout), "timeout", "give up after this many seconds; also a time such as 1m")
	f.BoolVar(&o.strict, "strict", false, "exit with an error if the turn could not be saved, even with --hook")
	f.BoolVar(&o.noPrompt, "no-prompt", false, "do not save the prompt")
	completeWords(cmd, "hook", claudeCode, codex, generic)
	o.register(cmd)
	return cmd
}

// forgiven prints the error of a hook on standard error, and returns nil. It does not return the
// error, because an agent interprets some exit codes as orders. With --strict, forgiven returns an
// exit code. It is called outside the command, so that it also handles errors of the command line.
func forgiven(cmd *cobra.Command, err error, stderr io.Writer) error {
	if err == nil || cmd.CommandPath() != "forkd turn" || !cmd.Flags().Changed("hook") {
		return err
	}
	printf(stderr, "forkd: the turn was not saved: %s\n", err)
	if strict, _ := cmd.Flags().GetBool("strict"); strict {
		return exitCode(exitError) // not 2, which would tell Claude Code to continue
	}
	return nil
}

func (o *turnOptions) run(cmd *cobra.Command, args []string) error {
	if o.keep < 0 {
		return usageError{fmt.Errorf("--keep %d: want 0 or more", o.keep)}
	}
	if err := checkOutput(o.output); err != nil {
		return err
	}
	limit := time.Duration(o.timeout * float64(time.Second))
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), limit, fmt.Errorf("it took longer than --timeout %s", limit))
	defer cancel()
	err := o.save(ctx, cmd, args)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

func (o *turnOptions) save(ctx context.Context, cmd *cobra.Command, args []string) error {
	e, err := readEvent(ctx, o.hook, cmd.InOrStdin(), args)
	if err != nil {
		return usageError{err}
	}
	if e.by == "" {
		return nil
	}
	e.session, e.id = cmp.Or(e.session, o.event.session), cmp.Or(e.id, o.event.id)
	if e.text = cmp.Or(e.text, o.event.text); o.noPrompt {
		e.text = ""
	}
	cl, _, err := connectWith(ctx, o.url, o.ca, nil) // starts no daemon, because a turn must not take that long
	if err != nil {
		return err
	}
	defer cl.Close()
	name, err := chooseWorkspace(ctx, cl, o.workspace)
	if err != nil {
		return err
	}
	store := &turnStore{cl: cl, name: name, keep: o.keep}
	note := e
	if e.by == byPrompt {
		e.text = "" // the saved changes were made before this prompt
	}
	saved, made, err := store.save(ctx, e)
	if err == nil && note.by == byPrompt {
		err = store.notePrompt(ctx, note)
	}
	if err != nil {
		return err
	}
	if made {
		_, err = store.prune(ctx)
	}
	return errors.Join(err, o.report(cmd, saved, made))
}

// report prints the tag of a turn. In a hook it prints nothing, because the agent would read the
// output.
func (o *turnOptions) report(cmd *cobra.Command, saved client.Snapshot, made bool) error {
	switch {
	case o.hook != "" && o.hook != generic:
		return nil
	case o.json():
		answer := map[string]any{"saved": made}
		if made {
			answer["turn"] = saved
		}
		return writeJSON(cmd.OutOrStdout(), answer)
	case made:
		printLine(cmd.OutOrStdout(), saved.Tag)
	default:
		printLine(cmd.ErrOrStderr(), "forkd: nothing has changed since the last turn")
	}
	return nil
}
