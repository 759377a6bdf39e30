package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// ends is the output of `forkd ttl`.
type ends struct {
	ID        string `json:"id"`
	ExpiresAt int64  `json:"expires_at_unix,omitempty"` // 0: the sandbox never expires
}

func newTTLCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "ttl ID [TIME]",
		Short: "Show or set the time when a sandbox is deleted",
		Long: "TIME is a number of seconds, or a duration such as 90s, 2m or 7d, and counts from now; 0 or never: the\n" +
			"sandbox does not expire. It replaces earlier settings, such as --ttl-secs of the fork.",
		Example: "  forkd ttl ID 10m",
		Args:    usageArgs(arguments(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var ttl secondsValue
			if len(args) == 2 && args[1] != "never" {
				if err := ttl.Set(args[1]); err != nil {
					return usageError{fmt.Errorf("%s: %w, or never", args[1], err)}
				}
			}
			return showOf(cmd, &c, args[0], func(ctx context.Context, cl *client.Client, id string) (ends, error) {
				if len(args) == 1 {
					s, err := cl.Sandbox(ctx, id)
					return ends{s.ID, s.ExpiresAt}, err
				}
				s, err := cl.SetTTL(ctx, id, float64(ttl))
				return ends{s.ID, s.ExpiresAt}, err
			}, func(e ends) error {
				when := "never"
				if e.ExpiresAt != 0 {
					when = time.Unix(e.ExpiresAt, 0).Format(time.RFC3339)
				}
				printLine(cmd.OutOrStdout(), when)
				return nil
			})
		},
	}
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}
