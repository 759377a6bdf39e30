// Package cgroup limits the memory, processor time, threads and disk I/O of VM processes with
// cgroup v2. Each process has its own cgroup, called its leaf. The leaf is made before the process
// starts and removed after the process has ended, so the process never runs without its limits.
//
// The package finds a place in the hierarchy that the daemon may use, or says why there is none.
// Its callers decide the limits of a sandbox. The package sees only the memory and time that a VM
// process uses, and nothing inside guests.
//
// The kernel charges a page to the leaf whose process used the page first, until the page is freed.
// So pages of layers that a VMM only reads are charged to the daemon or to the VMM that made the
// snapshot. Pages that a guest writes are copied, and the copies are charged to the guest's own
// leaf. Layers in RAM that a VMM writes for branches are also charged to the VMM's leaf, even
// though they belong to the snapshot; see Leaf.Spare. The page cache of disks is charged to a leaf
// too, but when the leaf reaches its limit, the kernel reclaims page cache first.
//
// Sizes are in bytes unless a name says otherwise. The package uses a dozen small files of the
// kernel (Documentation/admin-guide/cgroup-v2.rst) directly, because the module containerd/cgroups
// would also add code for D-Bus and eBPF.
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

// Config configures a Tree.
type Config struct {
	Parent   string // cgroup directory that the daemon may use; the constant None: no limits; if empty, Open finds one
	RunDir   string // the daemon's run directory, which distinguishes its leaves from those of other daemons
	StateDir string // a directory on the disk to which I/O limits apply
}

// None is the value of Config.Parent for a daemon without limits.
const None = "none"

// controllers are the cgroup controllers that limits need. A host may lack some of them.
var controllers = []string{"memory", "cpu", "pids", "io"}

// unified is the kernel option that restricts systemd to cgroup v2.
const unified = "systemd.unified_cgroup_hierarchy=1"

// Tree holds all leaves of a daemon. A nil Tree has no leaves.
type Tree struct {
	dir     string
	enabled []string // available controllers
	missing error    // why there are no leaves, or why controllers are missing
	disk    string   // major:minor of the disk with the state directory
	diskErr error    // why the field disk is unknown
}

// Open finds a place for leaves and prepares it. If there is no such place, the tree has no leaves,
// and Missing says why.
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

// prepare makes the directory for leaves below the given cgroup.
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
		_ = os.Remove(dir) // fails if the cgroup has leaves
		return cmp.Or(err, fmt.Errorf("cgroup %s has none of the controllers %s; where cgroup v1 has them, boot with %s",
			parent, strings.Join(controllers, ", "), unified))
	}
	t.dir = dir
	return nil
}

// enable makes the controllers of a cgroup available to its children.
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

// Missing returns an error that says why there are no limits, or which kinds of limits are missing.
// It returns nil if all kinds are available.
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

// can(controller) returns an error if limits of this controller are not available.
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

// Sweep removes each leaf for which keep(name) is false. Such a leaf belongs to a VM that ended
// under an earlier daemon.
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

// Close removes the directory for leaves. If it contains leaves that the next daemon takes over,
// the directory stays.
func (t *Tree) Close() {
	if t != nil && t.dir != "" {
		_ = os.Remove(t.dir)
	}
}

// Usage returns the present and total usage of all leaves together.
func (t *Tree) Usage() (Usage, error) {
	if t == nil || t.dir == "" {
		return Usage{}, nil
	}
	return usageOf(t.dir)
}

func write(dir, file, value string) error {
	// Do not create the file: the kernel provides these files, and a missing file means that its
	// controller is missing.
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

// fields returns the words in a file of the cgroup dir.
func fields(dir, file string) ([]string, error) {
	p, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return nil, fmt.Errorf("read a cgroup: %w", err)
	}
	return strings.Fields(string(p)), nil
}
