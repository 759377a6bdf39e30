package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
			case len(boot.given) > 0:
				return usageError{errors.New("--volume needs --kernel and --rootfs: a branch has the volumes of its sandbox")}
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
type bootFlags struct {
	client.BakeRequest
	given []string // values of --volume
}

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
	f.StringArrayVar(&b.given, "volume", nil, "NAME:/PATH gives each sandbox of the snapshot a private copy of a volume, "+
		"NAME:/PATH:ro its data, read-only (repeatable)")
	noEffect(f, "rw", "", "of forkd 0.5; no effect: its disk can be written, in a layer of its own")
	noEffect(f, "keep-workdir", "", "of forkd 0.5; no effect")
}

func (b *bootFlags) run(cmd *cobra.Command, c *common, tag string) error {
	b.Kernel, b.Rootfs, b.Tag = cmp.Or(b.Kernel, os.Getenv(kernelEnv)), cmp.Or(b.Rootfs, os.Getenv(rootfsEnv)), tag
	if b.Tag == "" || b.Kernel == "" || b.Rootfs == "" {
		return usageError{errors.New("--tag, --kernel and --rootfs must be given together")}
	}
	for _, path := range []*string{&b.Kernel, &b.Rootfs} {
		abs, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = abs
	}
	volumes, err := b.volumes()
	if err != nil {
		return err
	}
	return show(cmd, c, func(ctx context.Context, cl *client.Client) (client.Baked, error) {
		if len(volumes) > 0 {
			return b.bakeWith(ctx, cl, volumes)
		}
		return cl.Bake(ctx, b.BakeRequest)
	}, func(made client.Baked) error {
		printLine(cmd.OutOrStdout(), made.Tag)
		printf(cmd.ErrOrStderr(), "forkd: booted in %.1f ms, saved in %.1f ms\n", made.BootMS, made.SaveMS)
		return nil
	})
}

// volumes parses the values of --volume. In forkd 0.5, all sandboxes of a snapshot wrote to one file, and
// damaged it. Here, each sandbox has a private copy of the volume, or can only read it.
func (b *bootFlags) volumes() (list []client.VolumeMount, err error) {
	for _, text := range b.given {
		if isHostDir(text) {
			return nil, usageError{fmt.Errorf("--volume %.200q: a volume has a name, and is not a file as in forkd 0.5: use "+
				"'forkd volume create NAME', copy the files into it (docs/volumes.md), and give NAME:/PATH", text)}
		}
		v, err := parseVolume(text)
		if err != nil {
			return nil, err
		}
		list = append(list, client.VolumeMount{Name: v.Name, Path: v.Path, Mode: cmp.Or(v.Mode, "copy")})
	}
	return list, nil
}

// bootSuffix is the suffix of the tag of a temporary parent, which bakeWith makes and removes. An
// earlier call that was killed may have left a parent with this tag. bakeWith removes this parent
// too. Users must not choose such tags.
const bootSuffix = ".forkd-boot"

// setUpSecs is the TTL of the sandbox of bakeWith, in seconds. It applies if this process is killed.
const setUpSecs = 600

// bakeWith bakes a parent with volume slots, mounts the volumes in a sandbox of this parent, and branches
// the sandbox. So forks of the snapshot have the volumes, even if their requests name none.
func (b *bootFlags) bakeWith(ctx context.Context, cl *client.Client, volumes []client.VolumeMount) (
	made client.Baked, err error) {
	req := b.BakeRequest
	req.Tag, req.VolumeSlots = b.Tag+bootSuffix, max(b.VolumeSlots, uint32(len(volumes)))
	if err := dropBoot(ctx, cl, req.Tag); err != nil {
		return made, err
	}
	if made, err = cl.Bake(ctx, req); err != nil {
		return made, err
	}
	after := context.WithoutCancel(ctx)
	defer func() { // removes the parent; the snapshot keeps its own links to the parent's files
		err = errors.Join(err, cl.DeleteSnapshot(after, req.Tag, client.DeleteOptions{Force: true}))
	}()
	forked, err := cl.Fork(ctx, client.ForkRequest{SnapshotTag: req.Tag, N: 1, TTLSecs: setUpSecs, Volumes: volumes})
	if err != nil {
		return made, err
	}
	id := forked.Sandboxes[0].ID
	defer func() { err = errors.Join(err, cl.Kill(after, id)) }()
	made.Snapshot, err = cl.Branch(ctx, id, client.BranchRequest{Tag: b.Tag, Mode: "full"})
	return made, err
}

// dropBoot removes the temporary parent of a killed command, and its sandbox.
func dropBoot(ctx context.Context, cl *client.Client, tag string) error {
	boxes, err := cl.Sandboxes(ctx)
	if err != nil {
		return err
	}
	for _, s := range boxes {
		if s.SnapshotTag == tag {
			err = errors.Join(err, cl.Kill(ctx, s.ID))
		}
	}
	dropped := cl.DeleteSnapshot(ctx, tag, client.DeleteOptions{Force: true})
	if !errors.Is(dropped, client.ErrSnapshotNotFound) {
		err = errors.Join(err, dropped)
	}
	return err
}
