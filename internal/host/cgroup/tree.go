// Package cgroup bounds what VM processes take from the host, by cgroup v2: memory, processor time,
// threads, and the disk of the daemon's state. Each process has a leaf of its own, which is made
// before it and removed after it, so that it never runs without its limits.
//
// It finds a place in the hierarchy that the daemon may use, and says why where there is none. What
// a sandbox is allowed, and who may change that, its callers decide. What happens inside of a guest
// is not seen here: a guest is memory and time of its process.
//
// Who is charged for what: a page is charged to the leaf whose process touched it first, until it
// is freed. Pages of layers that a VMM only reads are its snapshot's, so the daemon or the VMM that
// made the snapshot has them. What a guest writes is copied, and charged to its own leaf. What its
// VMM writes to layers in RAM, for branches, is charged to the leaf too, although it is the
// snapshot's: see Leaf.Spare. Page cache of disks is charged as well, but a leaf that reaches its
// limit gives that up first.
//
// Sizes are in bytes unless a name says otherwise. This is done by a dozen small files of the
// kernel (Documentation/admin-guide/cgroup-v2.rst); containerd/cgroups would bring D-Bus and eBPF
// for it.
package cgroup

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Config says where leaves go.
type Config struct {
	Parent   string // a cgroup directory that the daemon may use; None: no limits; empty: one is looked for
	RunDir   string // the daemon's: its leaves are kept apart from those of others
	StateDir string // whose disk io limits are for
}

// None is the parent of a daemon that does without limits.
const None = "none"

// controllers are those that limits need; a host may lack some.
var controllers = []string{"memory", "cpu", "pids", "io"}

// unified is the option of the kernel's command line that makes systemd leave cgroup v1 alone.
const unified = "systemd.unified_cgroup_hierarchy=1"

// Tree is the place of all leaves of a daemon. A nil Tree has none.
type Tree struct {
	dir     string
	enabled []string // of the controllers
	missing error    // why there are no leaves, or no more than these
	disk    string   // major:minor of the disk of the state directory
	diskErr error    // why there is none
}

// Open finds the place for leaves and prepares it. Where there is none the tree has no leaves, and
// Missing says why.
func Open(cfg Config) *Tree {
	t := &Tree{}
	if cfg.Parent == None {
		t.missing = errors.New("the daemon was started with --cgroup none")
		return t
	}
	parent := cfg.Parent
	if parent == "" {
		if parent, t.missing = findParent(); t.missing != nil {
			return t
		}
	}
	name := fmt.Sprintf("forkd-%x", sha256.Sum256([]byte(cfg.RunDir)))
	if t.missing = t.prepare(parent, name[:len("forkd-")+8]); t.missing != nil {
		return t
	}
	t.disk, t.diskErr = diskOf(cfg.StateDir)
	return t
}

// prepare makes the directory of the leaves below parent.
func (t *Tree) prepare(parent, name string) error {
	if err := leave(parent); err != nil {
		return err
	}
	dir := filepath.Join(parent, name)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make a cgroup: %w", err)
	}
	err := errors.Join(enable(parent), enable(dir))
	enabled, readErr := fields(dir, "cgroup.subtree_control")
	if readErr != nil {
		return readErr
	}
	for _, c := range controllers {
		if slices.Contains(enabled, c) {
			t.enabled = append(t.enabled, c)
		}
	}
	if len(t.enabled) == 0 {
		_ = os.Remove(dir) // it stays where it has leaves
		return cmp.Or(err, fmt.Errorf("cgroup %s has none of the controllers %s; where cgroup v1 has them, boot with %s",
			parent, strings.Join(controllers, ", "), unified))
	}
	t.dir = dir
	return nil
}

// enable lets the children of a cgroup have the controllers that it has itself.
func enable(dir string) error {
	have, err := fields(dir, "cgroup.controllers")
	if err != nil {
		return err
	}
	given, err := fields(dir, "cgroup.subtree_control")
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range controllers {
		if slices.Contains(have, c) && !slices.Contains(given, c) {
			if err := write(dir, "cgroup.subtree_control", "+"+c); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// Missing says why there are no limits, or which kinds there are not. It is nil if nothing is
// missing.
func (t *Tree) Missing() error {
	if t == nil {
		return errors.New("no cgroup was set up")
	}
	if t.missing != nil {
		return t.missing
	}
	var lacking []string
	for _, c := range controllers {
		if !slices.Contains(t.enabled, c) {
			lacking = append(lacking, c)
		}
	}
	if len(lacking) > 0 {
		return fmt.Errorf("cgroup %s lacks %s: the cgroup above it has to hand them down (systemd: "+
			"Delegate=cpu cpuset io memory pids, for users in user@.service)", filepath.Dir(t.dir), strings.Join(lacking, ", "))
	}
	return t.diskErr
}

// can says why limits of a controller cannot be set.
func (t *Tree) can(controller string) error {
	if t == nil || t.dir == "" {
		return t.Missing()
	}
	if !slices.Contains(t.enabled, controller) {
		return fmt.Errorf("cgroup %s has no controller %q", filepath.Dir(t.dir), controller)
	}
	if controller == "io" {
		return t.diskErr
	}
	return nil
}

// Sweep removes leaves that keep does not want: those of VMs that ended with an earlier daemon.
func (t *Tree) Sweep(keep func(name string) bool) error {
	if t == nil || t.dir == "" {
		return nil
	}
	entries, err := os.ReadDir(t.dir)
	if err != nil {
		return fmt.Errorf("sweep cgroups: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() && !keep(e.Name()) {
			errs = append(errs, t.leaf(e.Name()).Remove())
		}
	}
	return errors.Join(errs...)
}

// Close removes the place of the leaves, unless there are some, which are for the next daemon.
func (t *Tree) Close() {
	if t != nil && t.dir != "" {
		_ = os.Remove(t.dir)
	}
}

// Usage is what all leaves of the tree use together, and have used.
func (t *Tree) Usage() (Usage, error) {
	if t == nil || t.dir == "" {
		return Usage{}, nil
	}
	return usageOf(t.dir)
}

func write(dir, file, value string) error {
	// Without O_CREATE or O_TRUNC: these files are the kernel's, and a missing one is a missing
	// controller.
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(value)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("write %q to a cgroup: %w", value, err)
	}
	return nil
}

// fields are the words of a file.
func fields(dir, file string) ([]string, error) {
	p, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return nil, fmt.Errorf("read a cgroup: %w", err)
	}
	return strings.Fields(string(p)), nil
}
