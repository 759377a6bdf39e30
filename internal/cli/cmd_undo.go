package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// undone is the output of undo and redo.
type undone struct {
	Workspace string  `json:"workspace"`
	SandboxID string  `json:"sandbox_id"`
	At        string  `json:"at"`             // tag of the snapshot to which the sandbox was rolled back
	Kept      string  `json:"kept,omitempty"` // tag of the turn with the changes before the rollback, if there were any
	ReadyMS   float64 `json:"rollback_ready_ms"`
}

// undoOptions are the flags of undo and redo.
type undoOptions struct {
	common
	workspace string
	to        string
}

func newUndoCmd() *cobra.Command {
	o := &undoOptions{}
	cmd := &cobra.Command{
		Use:   "undo [N]",
		Short: "Go back to before the last turns of an agent",
		Long: "Puts the sandbox of a workspace back by N turns (default 1): memory, disk and processes. Changes since\n" +
			"the last turn count as one turn and are saved first, so that nothing is lost: 'forkd redo' goes forward\n" +
			"again.",
		Args: usageArgs(arguments(0, 1)),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args, byUndo) },
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&o.to, "to", "", "go to this turn instead, by its number or tag; may also go forward")
	o.completeFlag(cmd, "to", turnTags)
	return cmd
}

func newRedoCmd() *cobra.Command {
	o := &undoOptions{}
	cmd := &cobra.Command{
		Use:   "redo [N]",
		Short: "Go forward by turns that were undone",
		Long: "Puts the sandbox of a workspace forward by N turns (default 1), towards the newest turn that was undone.\n" +
			"Changes since the last turn are saved as a turn first.",
		Args: usageArgs(arguments(0, 1)),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args, byRedo) },
	}
	o.flags(cmd)
	return cmd
}

func (o *undoOptions) flags(cmd *cobra.Command) {
	workspaceFlag(&o.common, cmd, &o.workspace)
	o.register(cmd)
}

func (o *undoOptions) run(cmd *cobra.Command, args []string, by savedBy) error {
	steps := 1
	if len(args) > 0 {
		n, err := strconv.Atoi(args[0])
		if err != nil || n < 1 {
			return usageError{fmt.Errorf("argument N %q: want how many turns, 1 or more ('forkd rollback ID --to TAG' puts back any sandbox)",
				args[0])}
		}
		if steps = n; o.to != "" {
			return usageError{errors.New("argument N and --to exclude each other")}
		}
	}
	return o.common.run(cmd, func(ctx context.Context, cl *client.Client) error {
		name, err := chooseWorkspace(ctx, cl, o.workspace)
		if err != nil {
			return err
		}
		store := &turnStore{cl: cl, name: name}
		done, err := store.move(ctx, by, steps, o.to)
		if err != nil {
			return err
		}
		if o.json() {
			return writeJSON(cmd.OutOrStdout(), done)
		}
		printLine(cmd.OutOrStdout(), done.At)
		printf(cmd.ErrOrStderr(), "forkd: %s is at %s again\n", done.Workspace, done.At)
		if done.Kept != "" {
			printf(cmd.ErrOrStderr(), "forkd: what was changed since the last turn is kept as %s "+
				"('forkd undo --to %s' goes there)\n", done.Kept, done.Kept)
		}
		return nil
	})
}

// move rolls the sandbox back to another turn. It first saves the changes since the turn that the
// sandbox is at.
func (t *turnStore) move(ctx context.Context, by savedBy, steps int, to string) (done undone, err error) {
	s, has, err := t.look(ctx)
	if err != nil {
		return done, err
	}
	c, err := t.changed(ctx, s, has)
	if err != nil {
		return done, err
	}
	now := has.current(s)
	target, err := has.target(by, now, c, steps, to)
	if err != nil {
		return done, err
	}
	kept, made, err := t.save(ctx, turnEvent{by: by, agent: generic})
	if err != nil {
		return done, fmt.Errorf("nothing was changed: save the present state of %s first: %w", has.name, err)
	}
	r, err := t.cl.Rollback(ctx, s.ID, target)
	if err != nil {
		return done, err
	}
	done = undone{Workspace: has.name, SandboxID: s.ID, At: target, ReadyMS: r.RollbackReadyMS}
	if made {
		done.Kept = kept.Tag
	}
	_, _ = t.cl.Stats(ctx, s.ID) // resets the count of written bytes; if this fails, the next turn may be superfluous
	return done, nil
}

// target returns the tag of the snapshot to roll back to, given the turn that the sandbox is at and
// the change since that turn.
func (t *turns) target(by savedBy, now string, c change, steps int, to string) (string, error) {
	if to != "" {
		return t.named(to)
	}
	if by == byRedo {
		undone := t.forward(now)
		if steps > len(undone) {
			return "", fmt.Errorf("redo: %s can be redone ('forkd turns' lists all)",
				count(len(undone), "turn", "turns"))
		}
		return undone[steps-1], nil
	}
	line := t.line(now)
	if !c.used || !t.known(now) { // ignore the writes of an idle guest
		line = line[1:]
	}
	if len(line) == 0 {
		return "", fmt.Errorf("undo: no turn of %s can be undone ('forkd turns' lists them)", t.name)
	}
	if steps > len(line) {
		return "", fmt.Errorf("undo: %s can be undone, not %d ('forkd turns' lists them)",
			count(len(line), "turn", "turns"), steps)
	}
	return line[steps-1], nil
}

// known reports whether the list of snapshots contains a tag.
func (t *turns) known(tag string) bool {
	_, ok := t.all[tag]
	return ok
}

// turnTags lists the tags of all turns, for completion by a shell.
func turnTags(ctx context.Context, cl *client.Client) (tags []string, err error) {
	list, err := cl.Snapshots(ctx)
	for _, s := range list {
		if s.Labels[turnLabel] != "" {
			tags = append(tags, s.Tag)
		}
	}
	return tags, err
}

// named returns the tag for an argument of --to. The argument is the number or tag of a turn, or
// the tag of the snapshot from which the first turn started.
func (t *turns) named(ref string) (string, error) {
	if p, ok := t.find(ref); ok {
		return p.Snapshot.Tag, nil
	}
	starts := slices.ContainsFunc(t.saved, func(p turn) bool { return t.start(p.Snapshot.Tag) == ref })
	if starts {
		return ref, nil
	}
	return "", fmt.Errorf("--to %q: no turn of %s ('forkd turns' lists them)", ref, t.name)
}
