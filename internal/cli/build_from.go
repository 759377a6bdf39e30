package cli

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/forkd/forkd/client"
)

// registerFrom registers the flags for a parent that boots from the disk of a snapshot.
func (o *buildOptions) registerFrom(f *pflag.FlagSet) {
	f.StringVar(&o.from.From, "from", "", "boot from the disk of this snapshot, instead of making an image")
	f.Var((*mibValue)(&o.from.MemSizeMiB), "memory-mib",
		"memory of the VM, in MiB or with a unit, such as 4g, with --from (default: the snapshot's) or for a Dockerfile that starts from an image (default: 1024)")
	f.Uint32Var(&o.from.VCPUs, "vcpus", 0,
		"processors of the VM, with --from (default: the snapshot's) or for a Dockerfile that starts from an image (default: 1)")
	f.Uint32Var(&o.from.VolumeSlots, "volume-slots", 0,
		"number of volumes that a sandbox can mount, 1 to 8, with --from (default: the snapshot's)")
}

// runFrom makes a parent that boots from the disk of a snapshot.
func (o *buildOptions) runFrom(cmd *cobra.Command, c *common, args []string) error {
	switch {
	case len(args) > 0:
		return usageError{errors.New("--from and a recipe exclude each other")}
	case o.tag == "":
		return usageError{errors.New("--from needs --tag, the tag of the new snapshot")}
	}
	req := o.from
	req.Tag, req.Encrypt, req.ReadyTimeoutSecs, req.Limits = o.tag, o.encrypt, o.ready, o.limits.given()
	req.Network, _ = o.network.given() // fails only for secrets, which --from does not accept
	if o.kernel != "" {
		path, err := filepath.Abs(o.kernel)
		if err != nil {
			return err
		}
		req.Kernel = path
	}
	return show(cmd, c, func(ctx context.Context, cl *client.Client) (built, error) {
		if o.reuse {
			if s, err := cl.Snapshot(ctx, o.tag); err == nil && s.Bootable && (s.Encrypted || !o.encrypt) {
				return built{Baked: client.Baked{Snapshot: s.Snapshot}, Reused: true}, nil
			}
		}
		st := newStatus(cmd.ErrOrStderr())
		defer st.end()
		start := time.Now()
		baked, err := bakeInSteps(ctx, cl, req, st)
		return built{Baked: baked, BakeMS: msSince(start)}, err
	}, func(b built) error {
		printBuilt(cmd, b)
		return nil
	})
}
