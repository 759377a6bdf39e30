package cli

import (
	"cmp"
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newVolumeCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volume",
		Short: "Manage volumes: named disks that outlive sandboxes",
		Long: "'forkd run' and 'forkd fork' mount volumes with -v NAME:/PATH, and 'forkd volume attach' mounts them in\n" +
			"running sandboxes. The snapshot must have volume slots ('forkd build --volume-slots'). Volumes are branched,\n" +
			"suspended and rolled back with their sandbox.\n" +
			"docs/volumes.md has the rules.",
		Args: usageArgs(knownCommand),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newVolumeCreateCmd(), newVolumeListCmd(), newVolumeInspectCmd(), newVolumeSnapshotCmd(),
		newVolumeRemoveCmd(), newVolumeAttachCmd(), newVolumeDetachCmd())
	return cmd
}

func newVolumeCreateCmd() *cobra.Command {
	var c common
	var req client.VolumeRequest
	var labels []string
	cmd := &cobra.Command{
		Use:     "create NAME",
		Short:   "Make an empty volume",
		Long:    "Prints the name. An empty volume takes less than 2 MiB of the disk, whatever its size.",
		Example: "  forkd volume create data --size 10g",
		Args:    usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			req.Name = args[0]
			if req.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (client.Volume, error) {
				return cl.CreateVolume(ctx, req)
			}, func(v client.Volume) error {
				printLine(cmd.OutOrStdout(), v.Name)
				return nil
			})
		},
	}
	cmd.Flags().Var((*mibValue)(&req.SizeMiB), "size", "size in MiB or with a unit, such as 512m or 10g; 16m to 1t (default 1g)")
	volumeLabelFlag(cmd, &labels)
	c.register(cmd)
	return cmd
}

func newVolumeListCmd() *cobra.Command {
	var c common
	var quiet bool
	var labels []string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List volumes",
		Args:    usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) ([]client.Volume, error) {
				list, _, err := cl.VolumePage(ctx, client.PageRequest{Labels: labels})
				return list, err
			}, func(list []client.Volume) error {
				if quiet {
					for _, v := range list {
						printLine(cmd.OutOrStdout(), v.Name)
					}
					return nil
				}
				return table(cmd, "NAME\tSIZE\tON DISK\tWRITER\tCREATED\tLABELS", func(row func(...any)) {
					for _, v := range list {
						row(v.Name, mib(v.SizeBytes), mib(v.DiskBytes), cmp.Or(v.Writer, "-"), age(v.CreatedAt), labelText(v.Labels))
					}
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only names")
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil,
		"NAME=VALUE, or NAME: only volumes with that label (repeatable: with all of them)")
	c.register(cmd)
	return cmd
}

func newVolumeInspectCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "inspect NAME…",
		Short: "Print everything about volumes, as JSON",
		Args:  usageArgs(arguments(1, anyNumber)),
		RunE: func(cmd *cobra.Command, names []string) error {
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				found := []client.Volume{}
				var errs []error
				for _, name := range names {
					v, err := cl.Volume(ctx, name)
					if err != nil {
						errs = append(errs, err)
						continue
					}
					found = append(found, v)
				}
				return errors.Join(append(errs, writeJSON(cmd.OutOrStdout(), found))...)
			})
		},
	}
	c.complete(cmd, volumeNames)
	c.register(cmd)
	return cmd
}

func newVolumeSnapshotCmd() *cobra.Command {
	var c common
	var labels []string
	cmd := &cobra.Command{
		Use:   "snapshot NAME NEW",
		Short: "Copy a volume",
		Long: "Prints the name of the new volume. It has the size of NAME, and shares data with it until one\n" +
			"of them changes. No sandbox may have NAME mounted for writing: 'forkd volume ls' shows the writer.",
		Args: usageArgs(arguments(2, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			given, err := parseLabels(labels)
			if err != nil {
				return err
			}
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (client.Volume, error) {
				return cl.SnapshotVolume(ctx, args[0], client.VolumeSnapshotRequest{Name: args[1], Labels: given})
			}, func(v client.Volume) error {
				printLine(cmd.OutOrStdout(), v.Name)
				return nil
			})
		},
	}
	volumeLabelFlag(cmd, &labels)
	c.complete(cmd, volumeNames)
	c.register(cmd)
	return cmd
}

// volumeLabelFlag registers --label for a command that makes a volume.
func volumeLabelFlag(cmd *cobra.Command, to *[]string) {
	cmd.Flags().StringArrayVarP(to, "label", "l", nil, "NAME=VALUE to find the volume by (repeatable)")
}

func newVolumeRemoveCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:     "rm NAME…",
		Aliases: []string{"delete"},
		Short:   "Remove volumes and their data",
		Long:    "Prints the names of the removed volumes. The data cannot be brought back.",
		Args:    usageArgs(arguments(1, anyNumber)),
		RunE: func(cmd *cobra.Command, names []string) error {
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				removed := []string{}
				var errs []error
				for _, name := range names {
					if err := cl.DeleteVolume(ctx, name); err != nil {
						errs = append(errs, err)
						continue
					}
					removed = append(removed, name)
				}
				if c.json() {
					return errors.Join(append(errs, writeJSON(cmd.OutOrStdout(), map[string]any{"removed": removed}))...)
				}
				for _, name := range removed {
					printLine(cmd.OutOrStdout(), name)
				}
				return errors.Join(errs...)
			})
		},
	}
	c.complete(cmd, volumeNames)
	c.register(cmd)
	return cmd
}
