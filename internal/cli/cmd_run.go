package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// Time limits for work that continues after forkd was interrupted.
const (
	forkTimeout   = 2 * time.Minute
	removeTimeout = time.Minute
)

func newRunCmd() *cobra.Command {
	c := common{streams: true}
	var run command
	var keep bool
	var labels []string
	var network networkFlags
	var limits limitFlags
	var dirs hostDirs
	cmd := &cobra.Command{
		Use:   "run RECIPE|TAG|docker://IMAGE [--] [COMMAND [ARG…]]",
		Short: "Fork a sandbox, run a command in it, and remove it",
		Long: "Forks a sandbox from the snapshot TAG and runs a command (default: a shell) in it, as 'forkd exec' does.\n" +
			"If there is no such snapshot and RECIPE is a recipe, it is built first. There is no time limit unless\n" +
			"--timeout is given. The sandbox is removed at the end, unless --keep or --detach is given. Flags of\n" +
			"forkd go before COMMAND.\n" + exitCodes,
		Example: "  forkd run base -- uname -a\n  forkd run -it docker://alpine sh\n" +
			"  ID=$(forkd run -d python-numpy -- python3 -m http.server)\n" +
			"  forkd run -v ./src:/root/src python-numpy -- pytest /root/src   # copies a directory\n" +
			"  forkd run -it -v ./src:/root/src:both python-numpy              # keeps both sides in sync\n" +
			"  forkd run -v data:/data numpy-slots -- ls /data                 # mounts a volume",
		Args: usageArgs(arguments(1, anyNumber)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if done, err := run.parse(cmd, args[1:]); done || err != nil {
				return err
			}
			keep = keep || run.detach
			run.bound = !keep
			if len(run.req.Args) == 0 {
				if c.json() || run.detach {
					return usageError{fmt.Errorf("COMMAND is missing: 'forkd fork %s' starts a sandbox without one", args[0])}
				}
				run.interactive(cmd)
			}
			if err := run.prepare(cmd, c.json()); err != nil {
				return err
			}
			if !run.flags.Changed("timeout") {
				run.req.TimeoutSecs = 0
			}
			req := client.ForkRequest{N: 1, Limits: limits.given()}
			if err = network.giveTo(&req); err != nil {
				return err
			}
			if req.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			dirs.stays = !keep
			if err := dirs.pack(); err != nil {
				return err
			}
			defer dirs.close()
			req.Volumes = dirs.volumes
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				if req.SnapshotTag, err = snapshotFor(ctx, cmd, cl, args[0]); err != nil {
					return err
				}
				f, err := dirs.fork(ctx, cl, req, true, cmd.ErrOrStderr())
				if err != nil {
					return err
				}
				if err := dirs.copyInto(ctx, cl, f.Sandboxes...); err != nil {
					return err
				}
				id := f.Sandboxes[0].ID
				if run.detach {
					return c.leave(ctx, cmd, cl, &run, id)
				}
				err = dirs.whileSynced(ctx, cl, id, cmd.ErrOrStderr(), func() error {
					return c.runCommand(ctx, cmd, cl, &run, id)
				})
				if keep {
					printf(cmd.ErrOrStderr(), "forkd: kept as %s\n", id)
					return err
				}
				return errors.Join(err, removeSandbox(context.WithoutCancel(ctx), cl, id))
			})
		},
	}
	f := cmd.Flags()
	run.register(f, "kill the command after this many seconds (default no limit)")
	f.Lookup("detach").Usage = "print the id of the sandbox, and leave it and the command running"
	f.Lookup("timeout").DefValue = "0" // hides the default in the help text
	f.BoolVar(&keep, "keep", false, "do not remove the sandbox, and print its id")
	labelFlag(f, &labels)
	noEffect(f, "rm", "", "of docker; no effect: without --keep the sandbox is removed")
	noEffect(f, "init", "", "of docker; no effect: every sandbox has an init")
	noEffect(f, "privileged", "", "of docker; no effect: root may do anything in a sandbox")
	limits.register(f)
	dirs.register(f)
	c.completeVolumes(cmd)
	network.registerNew(cmd)
	c.complete(cmd, either(tags, recipeNames))
	c.register(cmd)
	return cmd
}

// leave starts a command in a sandbox and returns while both keep running. If the command does not
// start, leave removes the sandbox.
func (c *common) leave(ctx context.Context, cmd *cobra.Command, cl *client.Client, run *command, id string) error {
	pid, err := cl.ExecDetached(ctx, id, run.req)
	if err != nil {
		return errors.Join(err, removeSandbox(context.WithoutCancel(ctx), cl, id))
	}
	if c.json() {
		return writeJSON(cmd.OutOrStdout(), map[string]any{"id": id, "pid": pid})
	}
	printLine(cmd.OutOrStdout(), id)
	printf(cmd.ErrOrStderr(), "forkd: process %d keeps running; to follow it: forkd attach %s %d\n", pid, id, pid)
	return nil
}

func removeSandbox(ctx context.Context, cl *client.Client, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	if err := cl.Kill(ctx, id); err != nil && !client.IsNotFound(err) {
		return fmt.Errorf("sandbox %s was not removed: %w", id, err)
	}
	return nil
}

// snapshotFor returns the tag of the snapshot with the given name. If there is no such snapshot,
// and a recipe has this name, it builds the recipe.
func snapshotFor(ctx context.Context, cmd *cobra.Command, cl *client.Client, name string) (tag string, err error) {
	_, missing := cl.Snapshot(ctx, name)
	if missing == nil {
		return name, nil
	}
	recipe, err := loadRecipe(name)
	// Bad request: a name such as ubuntu:22.04 is not a valid tag.
	if err != nil && (client.IsNotFound(missing) || client.IsStatus(missing, http.StatusBadRequest)) {
		return "", fmt.Errorf("%q is neither a snapshot ('forkd images') nor a recipe: %w", name, err)
	}
	if err != nil {
		return "", missing
	}
	w := cmd.ErrOrStderr()
	b, err := build(ctx, cl, recipe, buildOptions{tag: recipe.Name, reuse: true, live: canRedraw(w)}, w)
	return b.Tag, err
}
