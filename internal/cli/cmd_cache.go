package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/cachedir"
)

func newCacheCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cache",
		Short: "Show and clean the caches of this host and of the daemon",
		Long: "forkd build keeps images, guest kernels and initramfses, because building them takes minutes. They are\n" +
			"in $FORKD_CACHE, by default ~/.cache/forkd. The daemon keeps the images that builds of Dockerfiles and\n" +
			"templates start from, and blobs: compressed files of snapshots that were packed, pushed or partly pulled.\n" +
			"Removed items are made again when a command needs them.",
		Args: usageArgs(knownCommand),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCacheLsCmd(), newCachePruneCmd())
	return cmd
}

// cached describes an item of the cache in the output of `forkd cache`.
type cached struct {
	image.Cached
	InUse  bool `json:"in_use"`           // the disk of a snapshot is based on this item
	Daemon bool `json:"daemon,omitempty"` // the item is in the daemon's cache, on the daemon's host
}

// daemonCached returns an item of the daemon's cache.
func daemonCached(c client.CachedImage) cached {
	return cached{Cached: image.Cached{Kind: c.Kind, Dir: c.Dir, Detail: c.Detail, Bytes: c.Bytes,
		Used: time.Unix(c.UsedAt, 0)}, InUse: c.InUse, Daemon: true}
}

func newCacheLsCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the cache",
		Args:  usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				list, err := listCache(ctx, cl)
				if err != nil {
					return err
				}
				list.warn(cmd)
				all := slices.Concat(list.all, list.daemon)
				if c.json() {
					return writeJSON(cmd.OutOrStdout(), all)
				}
				return printCached(cmd, all)
			})
		},
	}
	c.register(cmd)
	return cmd
}

func newCachePruneCmd() *cobra.Command {
	var c common
	unused := secondsValue(24 * 3600)
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove items of the caches that were not used for a while",
		Long: "Keeps images that snapshots of the daemon are based on, and the newest guest kernel. The command asks\n" +
			"only one daemon: if other daemons use the same cache, do not remove items that their snapshots need.",
		Args: usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				list, err := listCache(ctx, cl)
				if err != nil {
					return err
				}
				list.warn(cmd)
				removed, err := list.prune(time.Now().Add(-unused.duration()), dryRun)
				if err == nil && list.noDaemon == nil {
					p, failed := cl.PruneImages(ctx, unused.duration(), dryRun)
					removed, err = append(removed, list.others(p.Removed)...), failed
				}
				if c.json() {
					return errors.Join(err, writeJSON(cmd.OutOrStdout(), map[string]any{"removed": removed, "dry_run": dryRun}))
				}
				if err != nil && len(removed) == 0 {
					return err
				}
				did := "removed"
				if dryRun {
					did = "would remove"
				}
				bytes := int64(0)
				for _, r := range removed {
					bytes += r.Bytes
				}
				printf(cmd.OutOrStdout(), "%s %s, %d MiB\n", did, count(len(removed), "item", "items"), bytes>>20)
				return errors.Join(err, printCached(cmd, removed))
			})
		},
	}
	cmd.Flags().Var(&unused, "unused-for",
		"minimum time since the last use: a number of seconds, or a time such as 24h")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would be removed")
	c.register(cmd)
	return cmd
}

// cacheList lists the items of the cache, and says which items snapshots need.
type cacheList struct {
	all    []cached
	daemon []cached // entries of the daemon's cache, if that is a different cache
	inUse  []string
	// Snapshots whose images are unknown, because the snapshots are being made or are damaged. They
	// may need any image.
	unclear []string

	noDaemon error // why the daemon's cache is unknown
}

func listCache(ctx context.Context, cl *client.Client) (cacheList, error) {
	dir, err := cachedir.Dir()
	if err != nil {
		return cacheList{}, err
	}
	snapshots, err := cl.Snapshots(ctx)
	if err != nil {
		return cacheList{}, err
	}
	list := cacheList{all: []cached{}}
	for _, s := range snapshots {
		switch {
		case s.BaseImage != "":
			list.inUse = append(list.inUse, s.BaseImage)
		case s.Status != "ready":
			list.unclear = append(list.unclear, s.Tag)
		}
	}
	found, err := image.ListCached(dir)
	if err != nil {
		return list, err
	}
	used := image.InUse(list.inUse)
	for _, f := range found {
		list.all = append(list.all, cached{Cached: f, InUse: used[f.Dir]})
	}
	images, err := cl.CachedImages(ctx)
	list.daemon, list.noDaemon = list.others(images), err
	return list, nil
}

// warn says why the daemon's cache is not listed, for example because the token lacks the scope for
// it.
func (l cacheList) warn(cmd *cobra.Command) {
	if l.noDaemon != nil {
		printf(cmd.ErrOrStderr(), "forkd: the daemon's cache is not included: %s\n", l.noDaemon)
	}
}

// others(images) returns the images of the daemon's cache that this user's cache lacks. If the
// daemon runs as this user on this host, both caches are the same.
func (l cacheList) others(images []client.CachedImage) (list []cached) {
	for _, i := range images {
		c := daemonCached(i)
		if !slices.ContainsFunc(l.all, func(o cached) bool { return o.Dir == c.Dir && o.Used.Unix() == c.Used.Unix() }) {
			list = append(list, c)
		}
	}
	return list
}

// removable returns the items that no snapshot needs, and that no build has used since the given
// time.
func (l cacheList) removable(since time.Time) []image.Cached {
	var all []image.Cached
	for _, c := range l.all {
		all = append(all, c.Cached)
	}
	return image.Removable(all, l.inUse, since)
}

// prune removes the removable items and returns them. With dryRun, it only returns them.
func (l cacheList) prune(since time.Time, dryRun bool) ([]cached, error) {
	if len(l.unclear) > 0 {
		return []cached{}, fmt.Errorf("it is not known which images these snapshots need: %s; wait until they are ready, or remove "+
			"those that are damaged (forkd images, forkd rmi TAG)", strings.Join(l.unclear, ", "))
	}
	removed := []cached{}
	var errs []error
	for _, c := range l.removable(since) {
		if !dryRun {
			if err := c.Remove(); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		removed = append(removed, cached{Cached: c})
	}
	return removed, errors.Join(errs...)
}

func printCached(cmd *cobra.Command, list []cached) error {
	if len(list) == 0 {
		return nil
	}
	return table(cmd, "KIND\tSIZE\tUSED\tIN USE\tFOR\tCACHE\tDIRECTORY", func(row func(...any)) {
		for _, c := range list {
			inUse, detail, cache := "-", c.Detail, "user"
			if c.Daemon {
				cache = "daemon"
			}
			if c.InUse {
				inUse = "yes"
			}
			if detail == "" {
				detail = "-"
			}
			row(c.Kind, fmt.Sprintf("%d MiB", c.Bytes>>20), age(c.Used.Unix())+" ago", inUse, detail, cache, c.Dir)
		}
	})
}
