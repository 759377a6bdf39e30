package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// snapshotBytes is what a snapshot takes on disk by itself.
func snapshotBytes(d *client.SnapshotDetail) uint64 {
	return d.MemoryPhysical + d.DiskPhysical + d.VMStateBytes
}

// details describes all snapshots but those of suspended sandboxes, which go with them.
func details(ctx context.Context, cl *client.Client) ([]client.SnapshotDetail, error) {
	list, err := cl.Snapshots(ctx)
	if err != nil {
		return nil, err
	}
	var all []client.SnapshotDetail
	for _, s := range list {
		if s.Transient {
			continue
		}
		d, err := cl.Snapshot(ctx, s.Tag)
		if client.IsNotFound(err) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// removable chooses the snapshots that want says and that nothing uses but others that are chosen
// too, dependents first.
func removable(all []client.SnapshotDetail, want func(*client.SnapshotDetail) bool) (chosen []client.SnapshotDetail) {
	isChosen := map[string]bool{}
	for again := true; again; {
		again = false
		for i := range all {
			d := &all[i]
			needed := slices.ContainsFunc(d.Dependents, func(tag string) bool { return !isChosen[tag] })
			if isChosen[d.Tag] || needed || d.Sandboxes > 0 || d.Status == "writing" || !want(d) {
				continue
			}
			isChosen[d.Tag], again = true, true
			chosen = append(chosen, *d)
		}
	}
	return chosen
}

func newDfCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "df",
		Short: "Say what snapshots and builds take on disk, and how much of it nothing uses",
		Long:  "'forkd prune' removes snapshots that nothing uses, 'forkd cache prune' what builds have left in the cache of this host.",
		Args:  usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				all, err := details(ctx, cl)
				if err != nil {
					return err
				}
				type line struct {
					Kind       string `json:"kind"`
					Count      int    `json:"count"`
					InUse      int    `json:"in_use"`
					Bytes      uint64 `json:"bytes"`
					Removable  uint64 `json:"removable_bytes"`
					isOfBranch bool
				}
				lines := []line{{Kind: "parents"}, {Kind: "branches", isOfBranch: true}, {Kind: "cache of builds"}}
				for i := range lines[:2] {
					l := &lines[i]
					own := func(d *client.SnapshotDetail) bool { return (d.BranchedFrom != "") == l.isOfBranch }
					for _, d := range all {
						if own(&d) {
							l.Count++
							l.InUse += btoi(d.Sandboxes > 0 || len(d.Dependents) > 0)
							l.Bytes += snapshotBytes(&d)
						}
					}
					for _, d := range removable(all, own) {
						l.Removable += snapshotBytes(&d)
					}
				}
				builds, err := listCache(ctx, cl)
				if err != nil { // the daemon is perhaps another host's
					fmt.Fprintf(cmd.ErrOrStderr(), "forkd: the cache of builds: %s\n", printable(err))
				}
				l := &lines[2]
				for _, item := range builds.all {
					l.Count++
					l.InUse += btoi(item.InUse)
					l.Bytes += uint64(item.Bytes)
				}
				for _, item := range builds.removable(time.Now()) {
					l.Removable += uint64(item.Bytes)
				}
				if c.json() {
					return writeJSON(cmd.OutOrStdout(), lines)
				}
				return table(cmd, "WHAT\tCOUNT\tIN USE\tSIZE\tREMOVABLE", func(row func(...any)) {
					for _, l := range lines {
						row(l.Kind, l.Count, l.InUse, mib(l.Bytes), mib(l.Removable))
					}
				})
			})
		},
	}
	c.register(cmd)
	return cmd
}

func mib(bytes uint64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

func newPruneCmd() *cobra.Command {
	var c common
	var older secondsValue
	var larger uint64
	var all, yes, dry bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove branches that nothing uses",
		Long: "Removes snapshots from which no sandbox runs and on which no other snapshot builds that stays: branches, and with\n" +
			"--all parents too, which would have to be built again. Without --yes it only says what it would remove.",
		Example: "  forkd prune --older-than 24h\n  forkd prune --older-than 24h --yes",
		Args:    usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				list, err := details(ctx, cl)
				if err != nil {
					return err
				}
				before := time.Now().Add(-older.duration()).Unix()
				chosen := removable(list, func(d *client.SnapshotDetail) bool {
					return (all || d.BranchedFrom != "") && d.CreatedAt <= before && snapshotBytes(d) >= larger<<20
				})
				removed, total := []string{}, uint64(0)
				for _, d := range chosen {
					if yes && !dry {
						if err := cl.DeleteSnapshot(ctx, d.Tag, client.DeleteOptions{}); err != nil {
							return fmt.Errorf("%s before it: %w", count(len(removed), "snapshot was removed", "snapshots were removed"), err)
						}
					}
					removed, total = append(removed, d.Tag), total+snapshotBytes(&d)
				}
				if c.json() {
					return writeJSON(cmd.OutOrStdout(), map[string]any{"snapshots": removed, "bytes": total, "removed": yes && !dry})
				}
				for _, tag := range removed {
					fmt.Fprintln(cmd.OutOrStdout(), tag)
				}
				what := "would be removed; --yes removes them"
				if yes && !dry {
					what = "removed"
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "forkd: %s of %s %s\n", count(len(removed), "snapshot", "snapshots"), mib(total), what)
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.Var(&older, "older-than", "only those made so long ago; a number of seconds, or a time such as 24h")
	f.Uint64Var(&larger, "larger-than-mib", 0, "only those that take at least so much disk")
	f.BoolVarP(&all, "all", "a", false, "parents too")
	f.BoolVarP(&yes, "yes", "y", false, "remove them")
	f.BoolVar(&dry, "dry-run", false, "only say what would be removed, whatever else is given")
	c.register(cmd)
	return cmd
}
