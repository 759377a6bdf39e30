package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// version is the version of this program. REST clients of forkd 0.5 work with it.
const version = "0.6.0"

var errAccel = errors.New("--accel: use kvm or tcg")

func newVersionCmd() *cobra.Command {
	var c common
	var must bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this program and of the daemon",
		Args:  usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var remote *client.Version
			err := c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				v, err := cl.Version(ctx)
				remote = &v
				return err
			})
			if _, usage := errors.AsType[usageError](err); usage {
				return err
			}
			if err != nil && must {
				return err
			}
			if err != nil {
				remote = nil
			}
			if c.json() {
				return writeJSON(cmd.OutOrStdout(), struct {
					Version string          `json:"version"`
					Daemon  *client.Version `json:"daemon"`
				}{version, remote})
			}
			printf(cmd.OutOrStdout(), "forkd %s\n", version)
			if remote == nil {
				printf(cmd.OutOrStdout(), "daemon: not reachable (%v)\n", err)
			} else {
				printf(cmd.OutOrStdout(), "daemon %s, API %s, accel %s\n", remote.Version, remote.API, remote.Accel)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&must, "daemon", false, "fail if the daemon does not answer, for use as a probe")
	c.register(cmd)
	return cmd
}
