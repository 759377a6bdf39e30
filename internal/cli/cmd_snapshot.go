package cli

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/forkd/forkd/client"
)

// newSnapshotCmd makes forkd 0.5's command snapshot. It makes a branch, or a parent from a given
// kernel and image.
func newSnapshotCmd() *cobra.Command {
	var c common
	var req client.BranchRequest
	var from string
	var live, diff bool
	boot := bootFlags{BakeRequest: client.BakeRequest{MemSizeMiB: 512, BootWaitSecs: 10}}
	cmd := &cobra.Command{
		Use:   "snapshot --from-sandbox ID",
		Short: "Make a snapshot of a running sandbox; see branch",
		Long: "The same as 'forkd branch ID'. With --kernel and --rootfs, paths on the daemon's host, it boots these\n" +
			"and makes a snapshot of the machine, as forkd 0.5 did; 'forkd build' also builds the image and gets the\n" +
			"kernel.",
		Args: usageArgs(func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && (args[0] == "ls" || args[0] == "list") {
				return errors.New("'forkd images' lists snapshots")
			}
			return arguments(0, 0)(cmd, args)
		}),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case from == "" && boot.Kernel == "" && boot.Rootfs == "":
				return usageError{errors.New("--from-sandbox is missing; 'forkd build' makes snapshots of recipes")}
			case from == "":
				return boot.run(cmd, &c, req.Tag)
			case boot.Kernel != "" || boot.Rootfs != "":
				return usageError{errors.New("--from-sandbox excludes --kernel and --rootfs")}
			case live && diff:
				return usageError{errors.New("--live and --diff exclude each other")}
			case live:
				req.Mode = "live"
			case diff:
				req.Mode = "diff"
			default:
				req.Mode = "full"
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				return branch(ctx, cmd, &c, cl, from, req, false)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from-sandbox", "", "the sandbox")
	f.StringVar(&req.Tag, "tag", "", "the snapshot's tag")
	f.BoolVar(&live, "live", false, "copy while the sandbox runs")
	f.BoolVar(&diff, "diff", false, "copy only pages that the sandbox has written")
	f.BoolVar(&req.NoWait, "no-wait", false, "with --live: return when the sandbox runs again")
	boot.register(f)
	c.completeFlag(cmd, "from-sandbox", sandboxNames)
	c.register(cmd)
	return cmd
}

// bootFlags are the flags for a parent that boots from given files.
type bootFlags struct{ client.BakeRequest }

// Environment variables that name the default files of a parent.
const (
	kernelEnv = "FORKD_KERNEL"
	rootfsEnv = "FORKD_ROOTFS"
)

func (b *bootFlags) register(f *pflag.FlagSet) {
	f.StringVar(&b.Kernel, "kernel", "",
		"kernel to boot, bzImage or ELF, with all drivers built in (default $"+kernelEnv+" if --rootfs is given)")
	f.StringVar(&b.Rootfs, "rootfs", "",
		"image of its disk, which is not written to (default $"+rootfsEnv+" if --kernel is given)")
	f.Uint64Var(&b.MemSizeMiB, "mem-size-mib", b.MemSizeMiB, "its memory")
	f.Uint32Var(&b.VolumeSlots, "volume-slots", 0, "number of volumes that a sandbox can mount, 1 to 8 (default none)")
	f.Float64Var(&b.BootWaitSecs, "boot-wait-secs", b.BootWaitSecs,
		"of forkd 0.5; no effect: the guest says when it is ready")
	_ = f.MarkHidden("boot-wait-secs") // fails only for a flag that does not exist
	noEffect(f, "rw", "", "of forkd 0.5; no effect: its disk can be written, in a layer of its own")
	noEffect(f, "keep-workdir", "", "of forkd 0.5; no effect")
}

func (b *bootFlags) run(cmd *cobra.Command, c *common, tag string) error {
	b.Kernel, b.Rootfs, b.Tag = cmp.Or(b.Kernel, os.Getenv(kernelEnv)), cmp.Or(b.Rootfs, os.Getenv(rootfsEnv)), tag
	if b.Tag == "" || b.Kernel == "" || b.Rootfs == "" {
		return usageError{errors.New("--tag, --kernel and --rootfs are wanted together")}
	}
	for _, path := range []*string{&b.Kernel, &b.Rootfs} {
		abs, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = abs
	}
	return show(cmd, c, func(ctx context.Context, cl *client.Client) (client.Baked, error) {
		return cl.Bake(ctx, b.BakeRequest)
	}, func(made client.Baked) error {
		printLine(cmd.OutOrStdout(), made.Tag)
		printf(cmd.ErrOrStderr(), "forkd: booted in %.1f ms, saved in %.1f ms\n", made.BootMS, made.SaveMS)
		return nil
	})
}
