package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newVolumeAttachCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "attach NAME ID:/PATH[:MODE]",
		Short: "Mount a volume in a running sandbox",
		Long: "Without a mode, the sandbox writes to the volume; with 'ro' it reads the volume, and with 'copy' it has a\n" +
			"private copy, as with -v of 'forkd fork'. The sandbox needs a free volume slot. Prints the id of the sandbox.",
		Example: "  forkd volume attach data sb-1:/data\n" +
			"  forkd volume attach models sb-1:/models:ro",
		Args: usageArgs(arguments(2, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := parseVolume(args[1])
			if err != nil {
				return usageError{fmt.Errorf("%.200q: want ID:/PATH, ID:/PATH:ro or ID:/PATH:copy with the id of a sandbox",
					args[1])}
			}
			sandbox := m.Name
			m.Name = args[0]
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (s client.Sandbox, err error) {
				id, err := sandboxID(ctx, cl, sandbox)
				if err != nil {
					return s, err
				}
				return cl.AttachVolume(ctx, id, m)
			}, func(s client.Sandbox) error {
				printLine(cmd.OutOrStdout(), s.ID)
				return nil
			})
		},
	}
	c.complete(cmd, volumeNames)
	c.register(cmd)
	return cmd
}

func newVolumeDetachCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "detach NAME ID",
		Short: "Unmount a volume in a running sandbox",
		Long: "The volume keeps its data, and other sandboxes can mount it. If a program in the sandbox uses it, the volume\n" +
			"stays mounted. Prints the name of the volume.",
		Args: usageArgs(arguments(2, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				id, err := sandboxID(ctx, cl, args[1])
				if err == nil {
					err = cl.DetachVolume(ctx, id, args[0])
				}
				if err != nil {
					return err
				}
				if c.json() {
					return writeJSON(cmd.OutOrStdout(), map[string]any{"detached": args[0], "id": id})
				}
				printLine(cmd.OutOrStdout(), args[0])
				return nil
			})
		},
	}
	c.complete(cmd, volumeNames)
	c.register(cmd)
	return cmd
}
