package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newImagesCmd() *cobra.Command {
	var c common
	var all, quiet bool
	cmd := &cobra.Command{
		Use:   "images [TAG]",
		Short: "List snapshots",
		Long: "Internal snapshots, such as the state of a suspended sandbox, are omitted: they are deleted with their\n" +
			"sandboxes.",
		Args: usageArgs(arguments(0, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (list []client.Snapshot, err error) {
				list, err = cl.Snapshots(ctx)
				list = listed(list, all)
				if len(args) == 1 {
					list = slices.DeleteFunc(list, func(s client.Snapshot) bool { return s.Tag != args[0] })
				}
				return list, err
			}, func(list []client.Snapshot) error {
				if quiet {
					for _, s := range list {
						printLine(cmd.OutOrStdout(), s.Tag)
					}
					return nil
				}
				err := table(cmd, "TAG\tSTATUS\tMEMORY\tVCPUS\tVOLUME SLOTS\tAGE\tPARENT\tSANDBOXES", func(row func(...any)) {
					for _, s := range list {
						parent := s.BranchedFrom
						if parent == "" {
							parent = "-"
						}
						if s.Arriving {
							s.Status = "arriving"
						}
						row(s.Tag, s.Status, fmt.Sprintf("%d MiB", s.MemSizeMiB), s.VCPUs, s.VolumeSlots, age(s.CreatedAt), parent,
							s.Sandboxes)
					}
				})
				for _, s := range list {
					if s.Warning != "" {
						printf(cmd.ErrOrStderr(), "forkd: %s\n", s.Warning)
					}
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "include internal snapshots")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print tags only")
	c.completeTags(cmd)
	c.register(cmd)
	return cmd
}

// listed returns the snapshots that users see or, if all is true, every snapshot. It always
// includes damaged snapshots.
func listed(list []client.Snapshot, all bool) []client.Snapshot {
	return slices.DeleteFunc(list, func(s client.Snapshot) bool { return s.Transient && s.Warning == "" && !all })
}

func newRmiCmd() *cobra.Command {
	var c common
	var opts client.DeleteOptions
	cmd := &cobra.Command{
		Use:   "rmi TAG…",
		Short: "Remove snapshots",
		Long: "Prints the removed tags. Snapshots that sandboxes run from are not removed. Snapshots that others build\n" +
			"on are removed only with --cascade or --force.",
		Args: usageArgs(arguments(1, anyNumber)),
		RunE: func(cmd *cobra.Command, tags []string) error {
			if opts.Cascade && opts.Force {
				return usageError{errors.New("--cascade and --force exclude each other")}
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				failed := 0
				err := each(cmd, &c, tags, func(tag string) (string, error) {
					err := cl.DeleteSnapshot(ctx, tag, opts)
					failed += btoi(err != nil)
					return tag, err
				}, func(tag string) string { return tag }, func(tags []string) any { return map[string]any{"removed": tags} })
				if len(tags) > 1 && failed > 0 {
					return errors.Join(err, fmt.Errorf("%d of %s not removed", failed, count(len(tags), "snapshot", "snapshots")))
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&opts.Cascade, "cascade", false, "also remove the snapshots that build on the removed ones")
	cmd.Flags().BoolVarP(&opts.Force, "force", "f", false,
		"remove them even if other snapshots build on them, which keep their own links to the files")
	c.completeTags(cmd)
	c.register(cmd)
	return cmd
}

func newSnapshotInfoCmd() *cobra.Command {
	var c common
	var old bool
	cmd := &cobra.Command{
		Use:   "snapshot-info TAG",
		Short: "Describe a snapshot",
		Args:  usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if old {
				c.output = "json"
			}
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (client.SnapshotDetail, error) {
				return cl.Snapshot(ctx, args[0])
			}, func(d client.SnapshotDetail) error {
				if d.Warning != "" {
					printf(cmd.ErrOrStderr(), "forkd: %s\n", d.Warning)
				}
				return values(cmd, "FIELD\tVALUE", func(row func(...any)) {
					row("tag", d.Tag)
					row("id", d.ID)
					row("status", d.Status)
					row("persisted", d.Persist)
					row("directory", d.Dir)
					row("encrypted", d.Encrypted)
					row("machine", fmt.Sprintf("%d MiB, %d vCPUs, CPU template %s", d.MemSizeMiB, d.VCPUs, d.CPUTemplate))
					row("volume slots", d.VolumeSlots)
					row("guest", fmt.Sprintf("kernel %s, warm %s", d.Kernel, strings.Join(d.Warm, " ")))
					row("memory", fmt.Sprintf("%d MiB on disk", d.MemoryPhysical>>20))
					row("disk", fmt.Sprintf("%d MiB on disk", d.DiskPhysical>>20))
					row("ancestors", strings.Join(d.Ancestors, " → "))
					row("dependents", strings.Join(d.Dependents, " "))
				})
			})
		},
	}
	cmd.Flags().BoolVar(&old, "json", false, "of forkd 0.5: -o json")
	_ = cmd.Flags().MarkHidden("json") // fails only for a flag that does not exist
	c.completeTags(cmd)
	c.register(cmd)
	return cmd
}

func newVerifyCmd() *cobra.Command {
	var c common
	var o registryOptions
	var keyFile string
	cmd := &cobra.Command{
		Use:   "verify TAG…|REGISTRY/NAME:TAG",
		Short: "Compare every file of snapshots with its digest, or verify the signature of one in a registry",
		Long: "Compares every file of the snapshots with its digest. For a snapshot in a registry, it says which key has signed\n" +
			"it: the public key in --key or, without --key, a key that the daemon trusts. Signatures of cosign count too.",
		Example: "  forkd verify python-numpy\n  forkd verify ghcr.io/owner/python-numpy:1 --key forkd.pub",
		Args:    usageArgs(arguments(1, anyNumber)),
		RunE: func(cmd *cobra.Command, tags []string) error {
			isRemote := strings.Contains(tags[0], "/")
			switch {
			case isRemote && len(tags) == 1:
				return verifySignature(cmd, &c, &o, tags[0], keyFile)
			case isRemote || keyFile != "" || len(o.auth) > 0:
				return usageError{errors.New("want one REGISTRY/NAME:TAG, or tags without --key and --registry-auth")}
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				return each(cmd, &c, tags, func(tag string) (string, error) {
					if !c.json() {
						printf(cmd.ErrOrStderr(), "forkd: reading every file of %s\n", tag)
					}
					return tag, cl.VerifySnapshot(ctx, tag)
				}, func(tag string) string { return tag + ": intact" },
					func(tags []string) any { return map[string]any{"intact": tags} })
			})
		},
	}
	cmd.Flags().StringVar(&keyFile, "key", "", "file of the public key, of 'forkd key generate' or cosign (default: all trusted keys)")
	o.registerAuth(cmd)
	c.completeTags(cmd)
	c.register(cmd)
	return cmd
}
