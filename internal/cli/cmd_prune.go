package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// snapshotBytes returns the disk usage of the files that belong to one snapshot only.
func snapshotBytes(d *client.SnapshotDetail) uint64 {
	return d.MemoryPhysical + d.DiskPhysical + d.VMStateBytes
}

// details describes all snapshots, including snapshots that forkd makes for its own use.
func details(ctx context.Context, cl *client.Client) ([]client.SnapshotDetail, error) {
	list, err := cl.Snapshots(ctx)
	if err != nil {
		return nil, err
	}
	var all []client.SnapshotDetail
	for _, s := range list {
		d, err := cl.Snapshot(ctx, s.Tag)
		if client.IsNotFound(err) {
			continue // the snapshot was removed in the meantime
		}
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// removable returns each snapshot d for which want(d) is true, dependents first. It omits a
// snapshot that is still used by a sandbox, or by a snapshot that stays. It also omits transient
// snapshots, and snapshots that are being written.
func removable(all []client.SnapshotDetail, want func(*client.SnapshotDetail) bool) (chosen []client.SnapshotDetail) {
	isChosen := map[string]bool{}
	for again := true; again; {
		again = false
		for i := range all {
			d := &all[i]
			needed := slices.ContainsFunc(d.Dependents, func(tag string) bool { return !isChosen[tag] })
			if isChosen[d.Tag] || needed || d.Transient || d.Sandboxes > 0 || d.Status == "writing" || !want(d) {
				continue
			}
			isChosen[d.Tag], again = true, true
			chosen = append(chosen, *d)
		}
	}
	return chosen
}

// usage is a row of the output of `forkd df`.
type usage struct {
	Kind      string `json:"kind"`
	Count     int    `json:"count"`
	InUse     int    `json:"in_use"`
	Bytes     uint64 `json:"bytes"`
	Removable uint64 `json:"removable_bytes"`
}

func (u *usage) add(bytes uint64, inUse bool) {
	u.Count++
	u.InUse += btoi(inUse)
	u.Bytes += bytes
}

// usageOf returns the disk usage of snapshots, volumes and builds. Deleted snapshots are not in the
// list all. Their usage is computed from the sandboxes that still need their files.
func usageOf(all []client.SnapshotDetail, sandboxes []client.Sandbox, volumes []client.Volume,
	builds cacheList) []usage {
	parents, branches := usage{Kind: "parents"}, usage{Kind: "branches"}
	states, deleted := usage{Kind: "states of sandboxes"}, usage{Kind: "removed branches"}
	disks := usage{Kind: "volumes"}
	cache, blobs := usage{Kind: "cache of builds"}, usage{Kind: "cache of pushes and pulls"}
	kind := func(d *client.SnapshotDetail) *usage {
		switch {
		case d.Transient:
			return &states
		case d.BranchedFrom != "" && !d.Built:
			return &branches
		}
		return &parents
	}
	for i := range all {
		d := &all[i]
		kind(d).add(snapshotBytes(d), d.Sandboxes > 0 || len(d.Dependents) > 0)
	}
	for _, d := range removable(all, func(*client.SnapshotDetail) bool { return true }) {
		kind(&d).Removable += snapshotBytes(&d)
	}
	for _, s := range sandboxes {
		if s.DeletedBytes > 0 {
			deleted.add(s.DeletedBytes, true)
		}
	}
	for _, v := range volumes {
		disks.add(v.DiskBytes, false)
	}
	for _, item := range builds.all {
		cache.add(uint64(item.Bytes), item.InUse)
	}
	for _, item := range builds.removable(time.Now()) {
		cache.Removable += uint64(item.Bytes)
	}
	for _, item := range builds.daemon {
		of := &cache
		if item.Kind == client.CachedBlob {
			of = &blobs
		}
		of.add(uint64(item.Bytes), item.InUse)
		if !item.InUse {
			of.Removable += uint64(item.Bytes)
		}
	}
	return []usage{parents, branches, states, deleted, disks, cache, blobs}
}

func newDfCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "df",
		Short: "Show the disk usage of snapshots, volumes and caches, and how much of it is unused",
		Long: "'forkd prune' removes unused snapshots, 'forkd cache prune' unused items of the caches, 'forkd volume rm'\n" +
			"volumes. The states of suspended sandboxes, and of sandboxes copied by 'forkd fork --from-sandbox', are deleted with\n" +
			"their sandboxes. Deleted branches that a sandbox still uses for its memory are deleted with the sandbox,\n" +
			"or with its next branch, rollback or suspension.",
		Args: usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (lines []usage, err error) {
				all, err := details(ctx, cl)
				if err != nil {
					return lines, err
				}
				sandboxes, err := cl.Sandboxes(ctx)
				if err != nil {
					return lines, err
				}
				volumes, err := cl.Volumes(ctx)
				if err != nil && !client.IsNotFound(err) { // a daemon of an earlier version has no volumes
					return lines, err
				}
				builds, err := listCache(ctx, cl)
				if err != nil { // the cache cannot be read; the daemon may run on another host
					printf(cmd.ErrOrStderr(), "forkd: the cache of builds: %s\n", err)
				}
				return usageOf(all, sandboxes, volumes, builds), nil
			}, func(lines []usage) error {
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
		Short: "Remove unused branches",
		Long: "Removes branches that no sandbox runs from and that no remaining snapshot builds on. --all also removes\n" +
			"unused parents and results of builds, which must be built again before they can be forked. Without --yes,\n" +
			"nothing is removed.\n" +
			"Data that forkd keeps for a sandbox ('forkd df') is deleted with the sandbox ('forkd kill').",
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
					return (all || d.BranchedFrom != "" && !d.Built) && d.CreatedAt <= before && snapshotBytes(d) >= larger<<20
				})
				removed, total := []string{}, uint64(0)
				for _, d := range chosen {
					if yes && !dry {
						if err := cl.DeleteSnapshot(ctx, d.Tag, client.DeleteOptions{}); err != nil {
							return fmt.Errorf("%s before this error: %w",
								count(len(removed), "snapshot was removed", "snapshots were removed"), err)
						}
					}
					removed, total = append(removed, d.Tag), total+snapshotBytes(&d)
				}
				if c.json() {
					return writeJSON(cmd.OutOrStdout(), map[string]any{"snapshots": removed, "bytes": total, "removed": yes && !dry})
				}
				for _, tag := range removed {
					printLine(cmd.OutOrStdout(), tag)
				}
				what := "would be removed; --yes removes them"
				if yes && !dry {
					what = "removed"
				}
				printf(cmd.ErrOrStderr(), "forkd: %s of %s %s\n", count(len(removed), "snapshot", "snapshots"), mib(total),
					what)
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.Var(&older, "older-than", "only branches older than this: a number of seconds, or a time such as 24h or 7d")
	f.Uint64Var(&larger, "larger-than-mib", 0, "only branches that use at least this much disk")
	f.BoolVarP(&all, "all", "a", false, "also parents and results of builds")
	f.BoolVarP(&yes, "yes", "y", false, "remove them")
	f.BoolVarP(&yes, "force", "f", false, "docker's name for --yes")
	_ = f.MarkHidden("force") // fails only for a flag that does not exist
	f.BoolVar(&dry, "dry-run", false, "only print what would be removed, regardless of other flags")
	c.register(cmd)
	return cmd
}
