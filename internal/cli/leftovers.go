package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/cachedir"
)

// leftover is a file or directory that a program has left behind, for example because the program
// was killed.
type leftover struct {
	Kind    string    `json:"kind"`
	Path    string    `json:"path"`
	Bytes   int64     `json:"bytes"` // disk usage
	Changed time.Time `json:"changed"`

	remove func() error
}

// place is a directory and a pattern. The matching entries of the directory may be leftovers.
type place struct {
	kind, dir string
	patterns  []string
}

// places() returns all places of leftovers. The patterns do not match forkd-run-UID, the run
// directory of a user without XDG_RUNTIME_DIR, because that directory is in use.
func places() []place {
	list := []place{
		{"doctor", os.TempDir(), []string{"forkd-doctor*"}},
		{"forkd 0.5", os.TempDir(), []string{"forkd-parent-*", "forkd-fork-*", "forkd-daemon-*", "forkd-workspace-*",
			"forkd-snapshot-*",
			"forkd-quickstart-*", "forkd-unpack-*", "forkd-pull-*", "forkd-branch-diff-*"}},
		{"forkd 0.5", "/dev/shm", []string{"forkd-prewarm"}},
	}
	cache, err := cachedir.Dir()
	if err != nil {
		return list
	}
	for _, dir := range []string{"kernel", "machine-kernel", "machine-qemu"} {
		list = append(list, place{"download", filepath.Join(cache, dir), []string{".staging-*"}})
	}
	return list
}

// findLeftovers returns entries of the given places. They belong to the calling user, have not
// changed since the given time, and are not open in any process.
func findLeftovers(in []place, since time.Time) ([]leftover, error) {
	var list []leftover
	for _, p := range in {
		entries, err := os.ReadDir(p.dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			matches := func(pattern string) bool { ok, _ := filepath.Match(pattern, e.Name()); return ok }
			path := filepath.Join(p.dir, e.Name())
			if !slices.ContainsFunc(p.patterns, matches) || !isOwn(path) {
				continue
			}
			l := leftover{Kind: p.kind, Path: path, remove: func() error { return removeIn(p.dir, e.Name()) }}
			if l.Bytes, l.Changed, err = measure(path); err != nil {
				return nil, err
			}
			if l.Changed.Before(since) {
				list = append(list, l)
			}
		}
	}
	if len(list) == 0 {
		return nil, nil
	}
	open := openPaths()
	return slices.DeleteFunc(list, func(l leftover) bool {
		return slices.ContainsFunc(open, func(path string) bool {
			return path == l.Path ||
				strings.HasPrefix(path, l.Path+"/")
		})
	}), nil
}

// isOwn reports whether a file or directory belongs to the calling user. Other users can also
// create entries with such names in /tmp.
func isOwn(path string) bool {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return false
	}
	kind := st.Mode & unix.S_IFMT
	return int(st.Uid) == os.Getuid() && (kind == unix.S_IFDIR || kind == unix.S_IFREG)
}

// measure returns the disk usage of a directory tree, and the time of its latest change.
func measure(root string) (bytes int64, changed time.Time, err error) {
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the file was removed in the meantime
		}
		if err != nil {
			return fmt.Errorf("look at %s: %w", path, err)
		}
		bytes += st.Blocks * 512
		if at := time.Unix(st.Mtim.Unix()); at.After(changed) {
			changed = at
		}
		return nil
	})
	return bytes, changed, err
}

// removeIn removes an entry of dir and everything below it. It does not follow links.
func removeIn(dir, name string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return root.RemoveAll(name)
}

// openPaths returns the paths of all files and unix sockets that processes have open or mapped. It
// omits processes that the calling user may not inspect. Such processes belong to other users, so
// they do not use files of this user.
func openPaths() []string {
	var paths []string
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*") // fails only for an invalid pattern
	more, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range append(links, more...) {
		if path, err := os.Readlink(link); err == nil {
			paths = append(paths, strings.TrimSuffix(path, " (deleted)"))
		}
	}
	maps, _ := filepath.Glob("/proc/[0-9]*/maps")
	for _, name := range append(maps, "/proc/net/unix") {
		paths = append(paths, lastPaths(name)...)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// lastPaths returns the path at the end of each line of a file in /proc, for the lines that end
// with a path.
func lastPaths(name string) (paths []string) {
	f, err := os.Open(name)
	if err != nil {
		return nil // the process has exited, or belongs to another user
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if _, path, ok := strings.Cut(lines.Text(), " /"); ok {
			paths = append(paths, "/"+path)
		}
	}
	return paths
}

// halfMade returns the incomplete items that killed builds have left in the cache.
func halfMade() ([]image.Cached, error) {
	dir, err := cachedir.Dir()
	if err != nil {
		return nil, err
	}
	all, err := image.ListCached(dir)
	return slices.DeleteFunc(all, func(c image.Cached) bool { return c.Kind != image.CachedLeftover }), err
}
