package volume

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// newMounts returns the Mounts of a guest with the volume slots 0 and 1. Slot 1 has a disk with an
// ext4 file system.
func newMounts(t *testing.T) *Mounts {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root mounts a file system")
	}
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(disk, 16<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("/usr/sbin/mke2fs", "-q", "-t", "ext4", disk).CombinedOutput(); err != nil {
		t.Skipf("mke2fs: %v: %s", err, out)
	}
	out, err := exec.Command("losetup", "--find", "--show", disk).CombinedOutput()
	if err != nil {
		t.Skipf("losetup: %v: %s", err, out)
	}
	loop := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", loop).CombinedOutput(); err != nil {
			t.Errorf("losetup: %v: %s", err, out)
		}
	})
	m := &Mounts{sys: t.TempDir(), dev: t.TempDir(), proc: "/proc", wait: 20 * time.Second}
	for name, files := range map[string]map[string]string{
		"loop0": {"size": "0\n"}, "vda": {"size": "2048\n", "serial": "disk0"}, "vdb": {"size": "0\n", "serial": "vol0"},
		"vdc": {"size": "32768\n", "serial": "vol1"},
	} {
		if err := os.Mkdir(filepath.Join(m.sys, name), 0o700); err != nil {
			t.Fatal(err)
		}
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(m.sys, name, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Symlink(loop, filepath.Join(m.dev, "vdc")); err != nil {
		t.Fatal(err)
	}
	return m
}

// place returns a path at which a test mounts a volume. The volume is unmounted when the test ends.
func place(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) }) // fails if the volume is not mounted
	return path
}

func TestMountAndUnmount(t *testing.T) {
	m := newMounts(t)
	v := agentproto.Volume{Slot: 1, Path: place(t, `a b\c/data`)}
	for range 2 { // the second call finds the mount
		if err := m.Mount(v); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Mount(agentproto.Volume{Slot: 1, Path: place(t, "other")}); err == nil ||
		!strings.Contains(err.Error(), "already mounted at") {
		t.Errorf("a second place: %v", err)
	}
	name := filepath.Join(v.Path, "file")
	if err := os.WriteFile(name, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second call finds no mount
		if err := m.Unmount(v); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the unmount: %v", err)
	}
	v.ReadOnly = true
	if err := m.Mount(v); err != nil {
		t.Fatal(err)
	}
	if p, err := os.ReadFile(name); err != nil || string(p) != "kept" {
		t.Errorf("%q %v", p, err)
	}
	if err := os.WriteFile(name, nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("a write to a volume that is read-only: %v", err)
	}
	if err := m.Unmount(v); err != nil {
		t.Error(err)
	}
}

// If programs use a volume, it cannot be unmounted, and the error names these programs.
func TestVolumeInUse(t *testing.T) {
	m := newMounts(t)
	v := agentproto.Volume{Slot: 1, Path: place(t, "data")}
	if err := m.Mount(v); err != nil {
		t.Fatal(err)
	}
	program := exec.Command("sleep", "600")
	program.Dir = v.Path
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	err := m.Unmount(v)
	_ = program.Process.Kill()
	_ = program.Wait()
	if want := fmt.Sprintf(`in use by "sleep" (process %d)`, program.Process.Pid); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	if err := m.Unmount(v); err != nil {
		t.Errorf("after the program has ended: %v", err)
	}
}

// If the disk is not in its slot yet, Mount waits until the disk appears.
func TestMountWaitsForTheDisk(t *testing.T) {
	m := newMounts(t)
	size := filepath.Join(m.sys, "vdc", "size")
	if err := os.WriteFile(size, []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	v, done := agentproto.Volume{Slot: 1, Path: place(t, "data")}, make(chan error, 1)
	go func() { done <- m.Mount(v) }()
	whole := size + ".new"
	if err := errors.Join(os.WriteFile(whole, []byte("32768\n"), 0o600), os.Rename(whole, size)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := m.Unmount(v); err != nil {
		t.Error(err)
	}
}

func TestRefusedMounts(t *testing.T) {
	m := newMounts(t)
	m.wait = 10 * time.Millisecond
	for want, v := range map[string]agentproto.Volume{
		"the slot is empty after 10ms":        {Slot: 0, Path: "/tmp/x"},
		"the machine has no such slot":        {Slot: 7, Path: "/tmp/x"},
		"slot -1: want a slot from 0 to 15":   {Slot: -1, Path: "/tmp/x"},
		"slot 16: want a slot from 0 to 15":   {Slot: 16, Path: "/tmp/x"},
		`path "/proc/x": want a path outside`: {Slot: 1, Path: "/proc/x"},
		"not a directory":                     {Slot: 1, Path: "/dev/../etc/passwd/x"},
	} {
		if v.Path = filepath.Clean(v.Path); m.Mount(v) == nil {
			t.Errorf("%+v was mounted", v)
		} else if err := m.Mount(v); !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", v, err, want)
		}
	}
	if err := m.Unmount(agentproto.Volume{Slot: 7, Path: "/tmp"}); err == nil {
		t.Error("a volume of no slot was unmounted")
	}
}
