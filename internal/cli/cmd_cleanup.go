package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/build/image"
)

func newCleanupCmd() *cobra.Command {
	var c common
	var yes, dry bool
	older, unused := secondsValue(3600), secondsValue(7*24*3600)
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove leftovers of killed forkd programs on this host, and unused build data",
		Long: "Finds incomplete files and directories of the calling user: from builds, downloads and doctor, and from\n" +
			"forkd 0.5. If a daemon answers, it also finds images and kernels that no build has used for --unused-for\n" +
			"and that no snapshot is based on. Files that a process has open, or that are younger than --older-than,\n" +
			"stay. Without --yes nothing is removed. At its start, a daemon removes incomplete files of earlier\n" +
			"daemons itself. To remove unused snapshots, use 'forkd prune'.",
		Args: usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := findLeftovers(places(), time.Now().Add(-older.duration()))
			if err != nil {
				return err
			}
			cached, err := c.unusedCache(cmd, time.Now().Add(-unused.duration()))
			if err != nil {
				return err
			}
			list = append(list, cached...)
			return c.sweep(cmd, list, yes && !dry)
		},
	}
	f := cmd.Flags()
	f.Var(&older, "older-than", "keep items that changed within this time: a number of seconds, or a time such as 2h")
	f.Var(&unused, "unused-for", "keep images and kernels that a build has used within this time")
	f.BoolVarP(&yes, "yes", "y", false, "remove it")
	f.BoolVar(&dry, "dry-run", false, "only print what would be removed, regardless of other flags")
	c.register(cmd)
	return cmd
}

// unusedCache returns remains of builds in the cache. The result has all incomplete items. It has
// those complete items that no snapshot needs, and that no build has used since the given time. If
// no daemon says which images its snapshots need, the result has no complete items.
func (c *common) unusedCache(cmd *cobra.Command, since time.Time) (list []leftover, err error) {
	half, err := halfMade()
	if err != nil {
		return nil, err
	}
	cached := half
	err = c.run(cmd, func(ctx context.Context, cl *client.Client) error {
		all, err := listCache(ctx, cl)
		if err != nil {
			return err
		}
		if len(all.unclear) > 0 {
			return fmt.Errorf("it is not known which images some snapshots need, such as %s", all.unclear[0])
		}
		for _, item := range all.removable(since) {
			if item.Kind != image.CachedLeftover { // halfMade has found the leftovers
				cached = append(cached, item)
			}
		}
		return nil
	})
	if usage, ok := errors.AsType[usageError](err); ok {
		return nil, usage
	}
	if err != nil {
		printf(cmd.ErrOrStderr(), "forkd: images and kernels are not included: %s\n", err)
	}
	for _, c := range cached {
		list = append(list, leftover{Kind: c.Kind, Path: c.Dir, Bytes: c.Bytes, Changed: c.Used, remove: c.Remove})
	}
	return list, nil
}

// sweep prints leftovers, and removes them if remove is true.
func (c *common) sweep(cmd *cobra.Command, list []leftover, remove bool) error {
	gone, bytes := []leftover{}, int64(0)
	var errs []error
	for _, l := range list {
		if remove {
			if err := l.remove(); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		gone, bytes = append(gone, l), bytes+l.Bytes
	}
	if c.json() {
		return errors.Join(append(errs, writeJSON(cmd.OutOrStdout(), map[string]any{"leftovers": gone, "bytes": bytes,
			"removed": remove}))...)
	}
	if len(gone) > 0 {
		errs = append(errs, table(cmd, "KIND\tSIZE\tCHANGED\tPATH", func(row func(...any)) {
			for _, l := range gone {
				row(l.Kind, mib(uint64(l.Bytes)), age(l.Changed.Unix())+" ago", l.Path)
			}
		}))
	}
	what := "removed"
	if !remove && len(gone) > 0 {
		what = "would be removed; --yes removes it"
	}
	printf(cmd.ErrOrStderr(), "forkd: %s, %s, %s\n", count(len(gone), "leftover", "leftovers"), mib(uint64(bytes)),
		what)
	return errors.Join(errs...)
}
