package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newEventsCmd() *cobra.Command {
	c := common{streams: true}
	var after string
	var labels []string
	cmd := &cobra.Command{
		Use:   "events [ID…]",
		Short: "Follow what happens to sandboxes and snapshots",
		Long: "Prints a line, or with -o json an object, for everything that happens from now on, until Ctrl-C. With IDs, only what\n" +
			"happens to these sandboxes. The daemon remembers some thousand events; --after ID prints those since one of them.",
		Example: "  forkd events\n  forkd events -o json | jq -r 'select(.type == \"sandbox.exited\") | .sandbox_id'",
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				ids, err := sandboxIDs(ctx, cl, args)
				if err != nil {
					return err
				}
				out := json.NewEncoder(cmd.OutOrStdout())
				err = cl.Events(ctx, client.EventsRequest{After: after, Sandboxes: ids, Labels: labels}, func(e client.Event) error {
					after = e.ID
					if c.json() {
						return out.Encode(e)
					}
					return printEvent(cmd.OutOrStdout(), &e)
				})
				if after != "" && errors.Is(err, io.ErrUnexpectedEOF) {
					return fmt.Errorf("the stream broke off (go on with --after %s): %w", after, err)
				}
				return err
			})
		},
	}
	cmd.Flags().StringVar(&after, "after", "", "id of an event: begin with those after it")
	selectorFlag(cmd.Flags(), &labels)
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}

func printEvent(w io.Writer, e *client.Event) error {
	what := e.SandboxID
	switch {
	case what == "":
		what = e.SnapshotTag
	case e.SnapshotTag != "":
		what += " (" + e.SnapshotTag + ")"
	}
	line := e.Time.Local().Format(time.DateTime) + "  " + fmt.Sprintf("%-18s  %s", e.Type, what)
	for _, more := range []string{e.Reason, e.Detail} {
		if more != "" {
			line += "  " + printable(errors.New(more))
		}
	}
	_, err := fmt.Fprintln(w, line)
	return err
}
