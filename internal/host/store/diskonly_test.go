package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// inMemory returns a file without a name. An initramfs that is made for one boot is such a file.
func inMemory(t *testing.T, content string) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("in-memory", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "in-memory")
	if _, err := f.WriteString(content); err != nil {
		t.Fatal(err)
	}
	return f
}

// parentWithBoot publishes a snapshot with memory that names its boot files.
func parentWithBoot(t *testing.T, s *Store, d dirs, tag string) {
	t.Helper()
	path := filepath.Join(filepath.Dir(d.base), "kernel")
	if err := os.WriteFile(path, []byte("the kernel"), 0o444); err != nil {
		t.Fatal(err)
	}
	kernel, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	initrd := inMemory(t, "the initramfs")
	defer initrd.Close()
	g, err := s.Stage(tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.UseBoot(kernel, initrd); err != nil {
		t.Fatal(err)
	}
	if err := complete(t, s, d, g, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil { // the store has its own link
		t.Fatal(err)
	}
}

// publishDisk makes a disk-only branch of the snapshot parent.
func publishDisk(t *testing.T, s *Store, tag, parent string) error {
	t.Helper()
	g, m, disk := stageDisk(t, s, s.Stage, tag, parent)
	defer g.Discard()
	_, err := g.PublishDisk(m, disk)
	return err
}

// stageDisk makes all files of a disk-only branch. The parameter parent is the tag of the snapshot
// that is branched. stageDisk returns the arguments for PublishDisk.
func stageDisk(t *testing.T, s *Store, stage func(tag string) (*Staging, error), tag, parent string) (*Staging,
	*snapshot.Manifest, []*os.File) {
	t.Helper()
	lease, err := s.AcquireDisk(parent)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lease.Release)
	g, err := stage(tag)
	if err != nil {
		t.Fatal(err)
	}
	top, err := g.Create("top")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { top.Close() })
	if _, err := top.WriteString("disk of " + tag); err != nil {
		t.Fatal(err)
	}
	pm := lease.Manifest()
	m := &snapshot.Manifest{Machine: pm.Machine, Guest: pm.Guest, Parent: &snapshot.Ref{ID: pm.ID, Tag: pm.Tag},
		Boot: pm.Boot, Disk: &snapshot.Disk{SizeBytes: pm.Disk.SizeBytes, Base: pm.Disk.Base}}
	m.Disk.Layers = append(m.Disk.Layers, pm.Disk.Layers...)
	return g, m, append(append([]*os.File{}, lease.Disk()[1:]...), top)
}

// A disk-only snapshot is on disk when it is published. It needs no files of other snapshots, and
// keeps its boot files.
func TestDiskOnlySnapshots(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	parentWithBoot(t, s, d, "parent")
	if err := publishDisk(t, s, "disk", "parent"); err != nil {
		t.Fatal(err)
	}
	if err := publishDisk(t, s, "disk2", "disk"); err != nil {
		t.Fatal(err)
	}
	var needsMemory *DiskOnlyError
	if _, err := s.Acquire("disk"); !errors.As(err, &needsMemory) {
		t.Errorf("leased for its memory: %v", err)
	}
	if err := s.Verify(context.Background(), "disk2"); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(s.staging()); err != nil || len(entries) != 0 {
		t.Errorf("staging: %v, %v", entries, err)
	}
	s.Close()
	if err := os.RemoveAll(d.ram); err != nil { // simulates a reboot
		t.Fatal(err)
	}
	s = d.open(t)
	for _, other := range []string{"disk", "parent"} { // the snapshot has its own links to all files that it needs
		if err := os.RemoveAll(s.dir(other)); err != nil {
			t.Fatal(err)
		}
	}
	lease, err := s.AcquireDisk("disk2")
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if n := len(lease.Disk()); n != 4 || lease.State() != nil || len(lease.Layers()) != 0 {
		t.Errorf("%d files of a disk, state %v", n, lease.State())
	}
	kernel, initrd, err := s.Boot("t", lease.Manifest().Boot)
	if err != nil {
		t.Fatal(err)
	}
	for f, want := range map[*os.File]string{kernel: "the kernel", initrd: "the initramfs"} {
		got := make([]byte, 100)
		n, _ := f.ReadAt(got, 0)
		if string(got[:n]) != want {
			t.Errorf("it boots from %q, want %q", got[:n], want)
		}
		f.Close()
	}
}

// If a boot file is lost or replaced, operations that need it return a *DamagedError.
func TestLostKernel(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	parentWithBoot(t, s, d, "parent")
	if err := publishDisk(t, s, "disk", "parent"); err != nil {
		t.Fatal(err)
	}
	lease, err := s.AcquireDisk("disk")
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if err := os.Remove(s.baseLink(lease.Manifest().Boot.Initrd.Digest)); err != nil {
		t.Fatal(err)
	}
	var damaged *DamagedError
	if _, _, err := s.Boot("t", lease.Manifest().Boot); !errors.As(err, &damaged) {
		t.Errorf("boot: %v", err)
	}
	if err := s.Verify(context.Background(), "disk"); !errors.As(err, &damaged) {
		t.Errorf("verify: %v", err)
	}
	// Verification does not need the kernel, because memory is restored without it.
	if err := s.Verify(context.Background(), "parent"); err != nil {
		t.Errorf("verify the parent: %v", err)
	}
}

// If the daemon is killed while a disk-only snapshot replaces another snapshot, the old or the new
// snapshot survives.
func TestKilledWhileADiskOnlySnapshotIsReplaced(t *testing.T) {
	for _, deleted := range []bool{false, true} { // killed before or after the deletion of the old snapshot
		d := newDirs(t)
		s := d.open(t)
		parentWithBoot(t, s, d, "parent")
		if err := publishDisk(t, s, "disk", "parent"); err != nil {
			t.Fatal(err)
		}
		want := snapshotID(s, "disk")
		g, m, disk := stageDisk(t, s, s.StageOver, "disk", "parent")
		g.diskOnly = true
		if err := errors.Join(g.complete(m, nil, disk),
			s.persist(g.dir, m, false)); err != nil { // the first steps of Publish
			t.Fatal(err)
		}
		if deleted {
			want = g.ID()
			if err := os.RemoveAll(s.dir("disk")); err != nil {
				t.Fatal(err)
			}
		}
		s.Close()
		disk[len(disk)-1].Close() // a killed daemon has no files open
		s = d.open(t)
		if got := snapshotID(s, "disk"); got != want {
			t.Errorf("deleted %v: the id is %q, want %q", deleted, got, want)
		}
		if err := s.Verify(t.Context(), "disk"); err != nil {
			t.Error(err)
		}
		s.Close() // waits for the flush
		for _, dir := range []string{s.staging(), s.dir("disk")} {
			if _, err := os.Lstat(filepath.Join(dir, wholeFile)); err == nil || dir == s.staging() && !isEmpty(t, dir) {
				t.Errorf("deleted %v: leftovers in %s", deleted, dir)
			}
		}
	}
}

// snapshotID returns the id of a snapshot, or "" if there is none.
func snapshotID(s *Store, tag string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byTag[tag]; e != nil {
		return e.id()
	}
	return ""
}

func isEmpty(t *testing.T, dir string) bool {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries) == 0
}

// If a published disk-only snapshot could not be moved out of the staging directory, it survives a
// restart. An incomplete disk-only snapshot is removed.
func TestPublishedDiskOnlySnapshotIsKept(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	parentWithBoot(t, s, d, "parent")
	obstacle := filepath.Join(s.dir("disk"), "in the way") // prevents the move of the snapshot
	if err := os.MkdirAll(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := publishDisk(t, s, "disk", "parent"); err != nil {
		t.Fatal(err)
	}
	g, m, disk := stageDisk(t, s, s.Stage, "partial", "parent")
	g.diskOnly = true
	if err := g.complete(m, nil, disk); err != nil { // simulates a daemon that is killed after this step
		t.Fatal(err)
	}
	s.Close()
	disk[len(disk)-1].Close() // a killed daemon has no files open
	if err := os.RemoveAll(s.dir("disk")); err != nil {
		t.Fatal(err)
	}
	s = d.open(t)
	if err := s.Verify(t.Context(), "disk"); err != nil {
		t.Errorf("published before the restart: %v", err)
	}
	var none *NotFoundError
	if _, err := s.Info("partial"); !errors.As(err, &none) {
		t.Errorf("incomplete: %v", err)
	}
}
