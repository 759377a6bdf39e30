package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Kinds of entries in the cache.
const (
	CachedImage     = "image"
	CachedKernel    = "kernel"
	CachedInitramfs = "initramfs"
	CachedLeftover  = "leftover" // files of a killed build
)

// Cached is an entry of the cache. A build can create the entry again.
type Cached struct {
	Kind   string    `json:"kind"`
	Dir    string    `json:"dir"`
	Detail string    `json:"detail,omitempty"` // recipe that an image was first built for, or version of a kernel
	Bytes  int64     `json:"bytes"`            // disk usage; a file with hard links elsewhere counts in full
	Used   time.Time `json:"used"`             // time of the last build that used it

	newest bool // whether this is the newest kernel, which builds use if apt offers none
}

// ListCached returns the entries of the cache, ordered by directory. It omits a running build.
func ListCached(cacheDir string) ([]Cached, error) {
	var list []Cached
	add := func(kind, dir, detail string) error {
		if kind == CachedLeftover {
			unlock, err := lockLeftover(dir)
			if errors.Is(err, context.Canceled) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("list the cache: %w", err)
			}
			unlock()
		}
		c := Cached{Kind: kind, Dir: dir, Detail: detail}
		info, err := os.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // published or removed since the directory was read
		}
		if err != nil {
			return fmt.Errorf("list the cache: %w", err)
		}
		c.Used = info.ModTime()
		if c.Bytes, err = treeBytes(dir); err != nil {
			return fmt.Errorf("list the cache: %w", err)
		}
		list = append(list, c)
		return nil
	}
	err := eachDir(imagesDir(cacheDir), func(name, dir string) error {
		switch {
		case leftover(name):
			return add(CachedLeftover, dir, "")
		case !keyPattern.MatchString(name):
			return nil
		}
		img, err := Open(dir)
		if err != nil {
			return add(CachedImage, dir, fmt.Sprintf("unusable: %v", err))
		}
		return add(CachedImage, dir, img.Recipe)
	})
	if err != nil {
		return nil, err
	}
	kernels := filepath.Join(cacheDir, "kernel")
	newest, _ := newestCached(kernels) // after an error, no kernel counts as the newest
	err = eachDir(kernels, func(name, dir string) error {
		if leftover(name) {
			return add(CachedLeftover, dir, "")
		}
		if !cloudPattern.MatchString("linux-image-"+name) && !strings.HasPrefix(name, userPrefix) {
			return nil // not a kernel of this package
		}
		own := len(list)
		if err := add(CachedKernel, dir, name); err != nil || len(list) == own {
			return err
		}
		list[own].newest = name == newest
		return eachDir(dir, func(sub, path string) error {
			if !strings.HasPrefix(sub, initramfsPrefix) {
				return nil
			}
			added := len(list)
			if err := add(CachedInitramfs, path, name); err != nil || len(list) == added {
				return err
			}
			list[own].Bytes -= list[added].Bytes
			return nil
		})
	})
	return list, err
}

// InUse returns the directories of the images whose root file systems have the given paths.
func InUse(rootfs []string) map[string]bool {
	dirs := make(map[string]bool)
	for _, name := range rootfs {
		dirs[filepath.Dir(filepath.Clean(name))] = true
	}
	return dirs
}

// Removable returns the entries of list that no build has used since the given time. It omits the
// newest kernel, the kernel of each initramfs that a build has used since then, and the images
// whose root file systems have the paths in inUse.
func Removable(list []Cached, inUse []string, since time.Time) []Cached {
	keep := InUse(inUse)
	for _, c := range list {
		if c.newest || c.Used.After(since) {
			keep[c.Dir] = true
			if c.Kind == CachedInitramfs {
				keep[filepath.Dir(c.Dir)] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(list), func(c Cached) bool { return keep[c.Dir] })
}

// Remove deletes the entry from the cache. A VM that has a file of the entry open keeps the file
// until the VM exits. Remove returns no error if the entry was already removed together with its
// kernel, or if a new build has taken over a leftover.
func (c Cached) Remove() error {
	parent, name := filepath.Split(c.Dir)
	if c.Kind == CachedLeftover {
		unlock, err := lockLeftover(c.Dir)
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("remove %s: %w", c.Dir, err)
		}
		defer unlock()
		return removeTree(c.Dir)
	}
	// Rename first, so that the entry is complete or absent even if the removal is interrupted.
	doomed := filepath.Join(parent, removedPrefix+name)
	if err := removeTree(doomed); err != nil {
		return fmt.Errorf("remove %s: %w", c.Dir, err)
	}
	if err := os.Rename(c.Dir, doomed); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", c.Dir, err)
	}
	if err := removeTree(doomed); err != nil {
		return fmt.Errorf("remove %s: %w", c.Dir, err)
	}
	return nil
}

// ListImages returns the entries of the cache that are images or leftovers of killed builds of
// images.
func ListImages(cacheDir string) ([]Cached, error) {
	list, err := ListCached(cacheDir)
	dir := imagesDir(cacheDir)
	return slices.DeleteFunc(list, func(c Cached) bool { return filepath.Dir(c.Dir) != dir }), err
}

// RemoveLeftovers deletes the leftovers of killed builds of images in the cache.
func RemoveLeftovers(cacheDir string) error {
	return eachDir(imagesDir(cacheDir), func(name, dir string) error {
		if !leftover(name) {
			return nil
		}
		return Cached{Kind: CachedLeftover, Dir: dir}.Remove()
	})
}

// lockLeftover prevents builds from taking over a leftover while it is removed. The error is
// context.Canceled if a build holds the lock.
func lockLeftover(dir string) (unlock func(), err error) {
	done, cancel := context.WithCancel(context.Background())
	cancel() // do not wait for the lock
	return lock(done, strings.TrimSuffix(dir, stagingSuffix)+lockSuffix, nil)
}

// used records that a build has used dir. A read-only cache is not an error.
func used(dir string) {
	now := time.Now()
	_ = os.Chtimes(dir, now, now)
}

// removedPrefix is the prefix of entries that are being removed.
const removedPrefix = ".removed-"

func leftover(name string) bool {
	return strings.HasPrefix(name, removedPrefix) || strings.HasPrefix(name, ".") && strings.HasSuffix(name, stagingSuffix)
}

// eachDir calls f for every directory in parent. It is not an error if parent does not exist.
func eachDir(parent string, f func(name, dir string) error) error {
	entries, err := os.ReadDir(parent)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list the cache: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := f(e.Name(), filepath.Join(parent, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// treeBytes returns the disk usage of a tree. Files that disappear during the walk, as in a staging
// directory, are ignored.
func treeBytes(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(name, &st)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) { // ErrPermission: files of subordinate ids
			return nil
		}
		n += st.Blocks * 512 // st_blocks counts 512-byte units, stat(2)
		return err
	})
	return n, err
}
