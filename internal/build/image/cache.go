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

// Kinds of what the cache holds.
const (
	CachedImage     = "image"
	CachedKernel    = "kernel"
	CachedInitramfs = "initramfs"
	CachedLeftover  = "leftover" // of a build that was killed
)

// Cached is something that a build has left in the cache and can make again.
type Cached struct {
	Kind   string    `json:"kind"`
	Dir    string    `json:"dir"`
	Detail string    `json:"detail,omitempty"` // of an image: the recipe that it was first made for
	Bytes  int64     `json:"bytes"`            // that it takes on the disk; files with other names elsewhere count too
	Used   time.Time `json:"used"`             // by a build, the last time

	newest bool // of the kernels: where apt offers none, builds need it
}

// ListCached returns what is in the cache, in the order of its directories. A build that goes on is
// not in it.
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
	newest, _ := newestCached(kernels) // none: there is nothing to keep
	err = eachDir(kernels, func(name, dir string) error {
		if leftover(name) {
			return add(CachedLeftover, dir, "")
		}
		if !cloudPattern.MatchString("linux-image-"+name) && !strings.HasPrefix(name, userPrefix) {
			return nil // made by something else
		}
		if err := add(CachedKernel, dir, name); err != nil {
			return err
		}
		kernel := &list[len(list)-1]
		kernel.newest = name == newest
		own := len(list) - 1
		return eachDir(dir, func(sub, path string) error {
			if !strings.HasPrefix(sub, initramfsPrefix) {
				return nil
			}
			if err := add(CachedInitramfs, path, name); err != nil {
				return err
			}
			list[own].Bytes -= list[len(list)-1].Bytes
			return nil
		})
	})
	return list, err
}

// InUse returns the directories of images by the paths of their root file systems.
func InUse(rootfs []string) map[string]bool {
	dirs := make(map[string]bool)
	for _, name := range rootfs {
		dirs[filepath.Dir(filepath.Clean(name))] = true
	}
	return dirs
}

// Removable returns what of list no build has used since the time given: not the newest kernel, nor
// a kernel with an initramfs that stays, nor the images in inUse, paths of root file systems.
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

// Remove deletes it from the cache. VMs that have a file of it open keep it until they end. What is
// gone already, with the kernel it belonged to, is no error, nor is a leftover that a new build of
// the same thing has taken up.
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
	// Renamed first: it is there whole or not at all, also when the removal is interrupted.
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

// lockLeftover keeps builds away from what an earlier one left. The error is context.Canceled if
// one is at it.
func lockLeftover(dir string) (unlock func(), err error) {
	done, cancel := context.WithCancel(context.Background())
	cancel() // it does not wait
	return lock(done, strings.TrimSuffix(dir, stagingSuffix)+lockSuffix, nil)
}

// used notes that a build has used dir. A cache that cannot be written to works too.
func used(dir string) {
	now := time.Now()
	_ = os.Chtimes(dir, now, now)
}

// removedPrefix begins the name of what is being removed.
const removedPrefix = ".removed-"

func leftover(name string) bool {
	return strings.HasPrefix(name, removedPrefix) || strings.HasPrefix(name, ".") && strings.HasSuffix(name, stagingSuffix)
}

// eachDir calls f for the directories in parent, which need not exist.
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

// treeBytes returns what a tree takes on the disk. What goes while it looks, as in a staging
// directory, counts nothing.
func treeBytes(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(name, &st)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) { // the latter: files of subordinate ids
			return nil
		}
		n += st.Blocks * 512 // st_blocks counts 512-byte units, stat(2)
		return err
	})
	return n, err
}
