package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/client"
)

func newEventsCmd() *cobra.Command {
	c := common{streams: true}
	var after, since string
	var labels []string
	cmd := &cobra.Command{
		Use:   "events [ID…]",
		Short: "Follow events of sandboxes and snapshots",
		Long: "Prints a line, or with -o json an object, for each event from now on, until Ctrl-C. With IDs, only\n" +
			"events of these sandboxes. The daemon keeps the last 4096 events: --after ID and --since print those\n" +
			"too.",
		Example: "  forkd events\n  forkd events -o json | jq -r 'select(.type == \"sandbox.exited\") | .sandbox_id'",
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := parseSince(since, time.Now())
			if err != nil {
				return usageError{fmt.Errorf("--since: %w", err)}
			}
			if since != "" && after == "" {
				after = oldest
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				ids, err := sandboxIDs(ctx, cl, args)
				if err != nil {
					return err
				}
				out := json.NewEncoder(plainJSON{cmd.OutOrStdout()})
				err = cl.Events(ctx, client.EventsRequest{After: after, Sandboxes: ids, Labels: labels},
					func(e client.Event) error {
						if after == oldest && e.Type == apiv1.EventMissed { // the user did not ask for earlier events
							return nil
						}
						after = e.ID
						if e.Time.Before(from) {
							return nil
						}
						if c.json() {
							return out.Encode(e)
						}
						return printEvent(cmd.OutOrStdout(), &e)
					})
				if after != "" && errors.Is(err, io.ErrUnexpectedEOF) {
					return fmt.Errorf("the stream broke off (continue with --after %s): %w", after, err)
				}
				return err
			})
		},
	}
	cmd.Flags().StringVar(&after, "after", "", "id of an event: begin after it")
	cmd.Flags().StringVar(&since, "since", "",
		"begin with events since a time, such as 10m ago or 2026-01-02T15:04:05Z, as far as the daemon remembers them")
	selectorFlag(cmd.Flags(), &labels)
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}

// oldest is a text that a client sends instead of the id of the last received event, to get all
// events that the daemon still has. No event has this id.
const oldest = "oldest"

// parseSince reads a time, or a duration before now.
func parseSince(text string, now time.Time) (time.Time, error) {
	var ago secondsValue
	switch {
	case text == "":
		return time.Time{}, nil
	case ago.Set(text) == nil:
		return now.Add(-ago.duration()), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, fmt.Errorf("%q: want a time such as 2026-01-02T15:04:05Z, or how long ago, such as 10m", text)
	}
	return t, nil
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
			line += "  " + more
		}
	}
	_, err := printLine(w, line)
	return err
}
