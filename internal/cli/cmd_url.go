package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newURLCmd() *cobra.Command {
	var c common
	var req client.PortURLRequest
	cmd := &cobra.Command{
		Use:   "url ID PORT",
		Short: "Make a URL that gives anyone access to a server in a sandbox",
		Long: "Prints a URL for an HTTP server that listens on PORT in the sandbox. The URL works without a token until\n" +
			"it expires. A single URL cannot be revoked. The daemon must be started with --proxy-domain.",
		Args: usageArgs(arguments(2, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			port, err := strconv.Atoi(args[1])
			if err != nil || port < 1 || port > maxPort {
				return usageError{fmt.Errorf("port %q: want a number from 1 to %d", args[1], maxPort)}
			}
			return showOf(cmd, &c, args[0], func(ctx context.Context, cl *client.Client, id string) (client.PortURL, error) {
				return cl.PortURL(ctx, id, port, req)
			}, func(u client.PortURL) error {
				printf(cmd.ErrOrStderr(), "valid until %s\n", time.Unix(u.ExpiresAt, 0).Format(time.RFC3339))
				_, err = printLine(cmd.OutOrStdout(), u.URL)
				return err
			})
		},
	}
	cmd.Flags().Var((*secondsValue)(&req.TTLSecs), "ttl-secs", "lifetime of the URL in seconds, up to 30 days; 0: an hour")
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}
