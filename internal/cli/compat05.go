package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/compat05"
	"github.com/forkd/forkd/internal/compat05/agent05"
)

// This file and cmd_snapshot.go contain the commands and flags of forkd 0.5.

// sayTo returns a function that prints a line for the user.
func sayTo(cmd *cobra.Command) func(string) {
	return func(text string) { printf(cmd.ErrOrStderr(), "forkd: %s\n", multiline(text)) }
}

// oldFork is forkd 0.5's command `forkd fork --tag TAG --settle-secs N`. The class Sandbox of the
// Python package runs this command. The sandboxes are killed when the command ends, after at most N
// seconds. If there is only one sandbox, $FORKD_TARGET is its address.
type oldFork struct {
	tag    string
	settle float64
}

func (o *oldFork) register(f *pflag.FlagSet) {
	f.StringVar(&o.tag, "tag", "", "of forkd 0.5: the snapshot; its sandboxes are deleted when this command ends")
	f.Float64Var(&o.settle, "settle-secs", 2, "of forkd 0.5, with --tag: maximum lifetime of the sandboxes")
	for _, name := range []string{"tag", "settle-secs"} {
		_ = f.MarkHidden(name) // fails only for a flag that does not exist
	}
	for _, name := range []string{"live-fork", "hugepages", "keep-workdir", "prewarm"} {
		noEffect(f, name, "", "of forkd 0.5; no effect")
	}
}

func (o *oldFork) run(cmd *cobra.Command, c *common, req client.ForkRequest) (err error) {
	if !(o.settle >= 0 && o.settle <= compat05.MaxSettle) {
		return usageError{fmt.Errorf("--settle-secs %g: want 0 to %d", o.settle, compat05.MaxSettle)}
	}
	req.SnapshotTag = o.tag
	c.streams = true // prints while it runs, so a waiting line must not be shown
	hold := compat05.Hold{Settle: o.settle, Say: sayTo(cmd)}
	if req.N == 1 && !req.PerChildNetns {
		if hold.Listener, err = compat05.ListenTarget(os.Getenv(compat05.TargetEnv)); err != nil {
			return err
		}
		defer hold.Listener.Close()
	}
	return c.run(cmd, func(ctx context.Context, cl *client.Client) error { return hold.Run(ctx, cl, req) })
}

// spawn is the name in forkd 0.5 of the command that tells a daemon to fork sandboxes.
const spawn = "spawn"

func newSpawnCmd() *cobra.Command {
	cmd := newForkCmd()
	cmd.Use, cmd.Hidden = spawn+" --tag TAG -n N", true
	return cmd
}

func newForwardGuestsCmd() *cobra.Command {
	c := common{streams: true}
	var port int
	cmd := &cobra.Command{
		Use:   "forward-guests",
		Short: "Make sandboxes reachable at their addresses, for programs made for forkd 0.5",
		Long: "A daemon with --guest-port gives clients of forkd 0.5 a loopback address for each sandbox (guest_addr).\n" +
			"This command serves all of these addresses on this host, like the agent of forkd 0.5, until Ctrl-C. It\n" +
			"uses your token, and refuses programs of other users of this host.",
		Example: "  forkd forward-guests &\n" +
			"  python3 -c 'from forkd import Controller, Sandbox\n" +
			"  child = Controller().spawn_sandboxes(\"base\")[0]\n" +
			"  print(Sandbox(target=child[\"guest_addr\"], spawn=False).commands.run(\"id\"))'",
		Args: usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if port < 1 || port > maxPort {
				return usageError{fmt.Errorf("--port %d: want 1 to %d", port, maxPort)}
			}
			if c.json() {
				return usageError{errors.New("-o json: there is nothing to print")}
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				return compat05.Forward(ctx, cl, port, sayTo(cmd))
			})
		},
	}
	cmd.Flags().IntVar(&port, "port", agent05.Port, "the daemon's --guest-port")
	c.register(cmd)
	return cmd
}
