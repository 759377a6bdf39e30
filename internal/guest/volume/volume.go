// Package volume mounts the disks of volume slots, and unmounts them.
//
// The host requests mounts and unmounts over the agent's control protocol. The host decides which
// volume is in which slot. Mounts are a part of the guest's memory, so a copy of the guest has them
// too.
package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// Mounts mounts the disks of volume slots.
type Mounts struct {
	sys  string        // directory with an entry for each block device
	dev  string        // directory with the block devices
	proc string        // the process file system
	wait time.Duration // how long a disk may take to appear in its slot
}

// New returns the Mounts of this guest.
func New() *Mounts {
	// The kernel notices a new disk when the guest runs. An emulated or busy CPU may delay that.
	return &Mounts{sys: "/sys/block", dev: "/dev", proc: "/proc", wait: 20 * time.Second}
}

// Mount mounts a volume, and makes the directory for it. If the volume is already mounted at the
// path, Mount does nothing.
func (m *Mounts) Mount(v agentproto.Volume) error {
	err := agentproto.CheckVolumePath(v.Path)
	if err == nil {
		err = m.mount(v)
	}
	if err != nil {
		return fmt.Errorf("mount the volume of slot %d: %w", v.Slot, err)
	}
	return nil
}

func (m *Mounts) mount(v agentproto.Volume) error {
	name, err := m.find(v.Slot)
	if err != nil {
		return err
	}
	device := filepath.Join(m.dev, name)
	at, err := m.mountPoints(device)
	if err != nil {
		return err
	}
	switch {
	case slices.Contains(at, v.Path):
		return nil
	case len(at) > 0:
		return fmt.Errorf("it is already mounted at %.200q", at[0])
	}
	if err := os.MkdirAll(v.Path, 0o755); err != nil {
		return err
	}
	flags := uintptr(unix.MS_NODEV | unix.MS_NOSUID)
	if v.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	// With discard, deleted files take no room on the host.
	if err := unix.Mount(device, v.Path, "ext4", flags, "discard,errors=remount-ro"); err != nil {
		return fmt.Errorf("mount it at %.200q: %w", v.Path, err)
	}
	return nil
}

// find returns the name of the block device of a slot. It waits until the slot has a disk.
func (m *Mounts) find(slot int) (string, error) {
	if slot < 0 || slot >= agentproto.MaxVolumeSlots {
		return "", fmt.Errorf("want a slot from 0 to %d", agentproto.MaxVolumeSlots-1)
	}
	for end := time.Now().Add(m.wait); ; time.Sleep(time.Millisecond) {
		name, sectors, err := m.look(agentproto.VolumeSerial(slot))
		switch {
		case err != nil:
			return "", err
		case sectors > 0:
			return name, nil
		case time.Now().After(end):
			return "", fmt.Errorf("the slot is empty after %v", m.wait)
		}
	}
}

// look returns the block device with a serial number, and its size in sectors.
func (m *Mounts) look(serial string) (name string, sectors uint64, err error) {
	entries, err := os.ReadDir(m.sys)
	if err != nil {
		return "", 0, err
	}
	for _, e := range entries {
		p, err := os.ReadFile(filepath.Join(m.sys, e.Name(), "serial"))
		if err != nil || strings.TrimSpace(string(p)) != serial { // other kinds of devices have no serial number
			continue
		}
		p, err = os.ReadFile(filepath.Join(m.sys, e.Name(), "size"))
		if err != nil {
			return "", 0, err
		}
		sectors, err = strconv.ParseUint(strings.TrimSpace(string(p)), 10, 64)
		return e.Name(), sectors, err
	}
	return "", 0, errors.New("the machine has no such slot")
}

// mountPoints returns the paths at which a block device is mounted.
func (m *Mounts) mountPoints(device string) (at []string, err error) {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return nil, fmt.Errorf("%s: %w", device, err)
	}
	number := fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	p, err := os.ReadFile(filepath.Join(m.proc, "self/mountinfo"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(p)) {
		if f := strings.Fields(line); len(f) > 4 && f[2] == number { // see proc_pid_mountinfo(5)
			at = append(at, unescape.Replace(f[4]))
		}
	}
	return at, nil
}

// unescape decodes a path in mountinfo. The kernel encodes no other characters.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// Unmount writes the data of a volume to its disk, and then unmounts the volume. If programs use
// the volume, the error names some of these programs, and the volume stays mounted. Even then, all
// data that was written before is on the disk. If the volume is not mounted at the path, Unmount
// does nothing.
func (m *Mounts) Unmount(v agentproto.Volume) error {
	name, _, err := m.look(agentproto.VolumeSerial(v.Slot))
	if err != nil {
		return fmt.Errorf("unmount the volume of slot %d: %w", v.Slot, err)
	}
	at, err := m.mountPoints(filepath.Join(m.dev, name))
	if err != nil {
		return fmt.Errorf("unmount the volume of slot %d: %w", v.Slot, err)
	}
	if !slices.Contains(at, v.Path) {
		return nil
	}
	return m.unmount(v.Path)
}

func (m *Mounts) unmount(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = unix.Syncfs(int(f.Fd()))
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write the data of %.200q: %w", path, err)
	}
	if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("unmount %.200q: it is in use by %s", path, strings.Join(m.users(path), ", "))
	} else if err != nil {
		return fmt.Errorf("unmount %.200q: %w", path, err)
	}
	return nil
}

// maxUsers is the maximum number of programs that an error names.
const maxUsers = 5

// users describes programs that have a file or directory below path open.
func (m *Mounts) users(path string) (list []string) {
	processes, _ := filepath.Glob(filepath.Join(m.proc, "[0-9]*"))
	for _, p := range processes {
		if len(list) == maxUsers {
			break
		}
		if uses(p, path) {
			name, _ := os.ReadFile(filepath.Join(p, "comm"))
			list = append(list, fmt.Sprintf("%.20q (process %s)", strings.TrimSpace(string(name)), filepath.Base(p)))
		}
	}
	if len(list) == 0 {
		return []string{"a mount below it, or a program that maps one of its files"}
	}
	return list
}

// uses reports whether a process has a file or directory below path open. The process is given as
// its directory in /proc.
func uses(process, path string) bool {
	links := []string{"cwd", "root", "exe"}
	files, _ := os.ReadDir(filepath.Join(process, "fd"))
	for _, f := range files {
		links = append(links, filepath.Join("fd", f.Name()))
	}
	for _, l := range links {
		to, err := os.Readlink(filepath.Join(process, l))
		if err == nil && (to == path || strings.HasPrefix(to, path+"/")) {
			return true
		}
	}
	return false
}
