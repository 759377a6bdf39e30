package volume

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// On a full disk, a volume gets no new writer, is not merged, and keeps its content.
func TestFullDiskOfAWriter(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root mounts a file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("mount tmpfs: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	volumes, ballast := filepath.Join(dir, "volumes"), filepath.Join(dir, "ballast")
	s := open(t, volumes)
	create(t, s, "a")
	startWriter(t, s, marks{4000: 1})
	startWriter(t, s, marks{4001: 2})
	if err := s.Release(t.Context(), "a", "sb-1"); err != nil {
		t.Fatal(err)
	}
	before := files(t, filepath.Join(volumes, "a"))
	if err := os.WriteFile(ballast, make([]byte, 4*mib), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if _, err := s.Write(t.Context(), "a", "sb-2"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a writer on a full disk: %v", err)
	}
	if err := s.Merge(t.Context(), "a"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a merge on a full disk: %v", err)
	}
	if i, err := s.Get("a"); err != nil || i.Writer != "" || i.Layers != 2 {
		t.Errorf("%+v %v", i, err)
	}
	if after := files(t, filepath.Join(volumes, "a")); !slices.Equal(after, before) {
		t.Errorf("files %v, want %v", after, before)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{s, open(t, volumes)} {
		if got, want := content(t, s, "a"), (marks{4000: 1, 4001: 2}); !equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

// A record is refused if it names a layer twice, names a path, or names no top for a branch.
func TestRefusedLayers(t *testing.T) {
	for name, field := range map[string]string{
		"path":            `"layers":["../b/base.img"]`,
		"twice":           `"layers":["x.layer","x.layer"]`,
		"gone":            `"layers":["gone.layer"]`,
		"base":            `"layers":["base.img"]`,
		"only-a-next-top": `"writer":{"sandbox_id":"sb-1","next":"x.layer"}`,
		"no-sandbox":      `"writer":{"sandbox_id":"","top":"x.layer"}`,
		"top-gone":        `"writer":{"sandbox_id":"sb-1","top":"gone.layer"}`,
	} {
		dir := t.TempDir()
		create(t, open(t, dir), name)
		path := filepath.Join(dir, name, recordFile)
		p, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		p = append(p[:len(p)-1], []byte(","+field+"}")...)
		if err := errors.Join(os.WriteFile(path, p, 0o600), os.WriteFile(filepath.Join(dir, name, "x.layer"), nil,
			0o600)); err != nil {
			t.Fatal(err)
		}
		s, err := Open(Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(name); !isError(err, false, true) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(dir, name, "x.layer")); err != nil {
			t.Errorf("%s: a file of a refused volume was removed: %v", name, err)
		}
	}
}

// If a VM has not closed a volume in time, the volume is not released. The next call that needs the
// volume releases it. Until the VM has closed the volume, no call touches it.
func TestEndedWriter(t *testing.T) {
	list := map[string]func(s *Store) error{
		"write":  func(s *Store) error { return closed(s.Write(t.Context(), "a", "sb-2")) },
		"merge":  func(s *Store) error { return s.Merge(t.Context(), "a") },
		"remove": func(s *Store) error { return s.Remove(t.Context(), "a") },
		"snapshot": func(s *Store) error {
			_, err := s.Snapshot(t.Context(), "a", Request{Name: "b", Owner: "x"})
			return err
		},
		"copy": func(s *Store) error { return copyOf(t, t.Context(), s) },
	}
	for name, use := range list {
		s := open(t, filepath.Join(t.TempDir(), "volumes"))
		create(t, s, "a")
		f, err := s.Write(t.Context(), "a", "sb-1")
		if err != nil {
			t.Fatal(err)
		}
		write(t, f.Top, marks{4000: 1})
		s.patience = 1
		s.ReleaseAll("sb-1")
		if i, err := s.Get("a"); err != nil || i.Writer != "" {
			t.Errorf("%s: %+v %v", name, i, err)
		}
		var inUse *InUseError
		if err := use(s); !errors.As(err, &inUse) || !inUse.Ended || inUse.SandboxID != "sb-1" {
			t.Errorf("%s before the VM has closed the volume: %v", name, err)
		}
		f.Close()
		s.patience = 1 << 40
		if err := use(s); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		s.ReleaseAll("sb-2")
		if name == "remove" {
			continue
		}
		if got := content(t, s, "a"); !equal(got, marks{4000: 1}) {
			t.Errorf("after %s: %v", name, got)
		}
	}
}

// closed closes the files of a result of Write.
func closed(f *Files, err error) error {
	if f != nil {
		f.Close()
	}
	return err
}

// On a full disk a volume cannot be released. The volume can still be removed, and its removal
// makes room. When there is room, the volume can be used again.
func TestFullDiskAtTheEndOfAWriter(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root mounts a file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=6m"); err != nil {
		t.Skipf("mount tmpfs: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	volumes, ballast := filepath.Join(dir, "volumes"), filepath.Join(dir, "ballast")
	s := open(t, volumes)
	for range 2 {
		create(t, s, "a")
		startWriter(t, s, marks{4000: 1})
		if err := os.WriteFile(ballast, make([]byte, 8*mib), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		s.ReleaseAll("sb-1")
		if _, err := s.Write(t.Context(), "a", "sb-2"); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("a writer on a full disk: %v", err)
		}
		if err := s.Remove(t.Context(), "a"); err != nil {
			t.Errorf("a removal on a full disk: %v", err)
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
	}
	create(t, s, "a")
	startWriter(t, s, marks{4000: 1})
	if err := os.WriteFile(ballast, make([]byte, 8*mib), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	s.ReleaseAll("sb-1")
	s = open(t, volumes) // a start on the full disk
	s.Recover(func(string) bool { return false })
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if got := content(t, s, "a"); !equal(got, marks{4000: 1}) {
		t.Errorf("with room again: %v", got)
	}
}

// A sandbox that damages a volume again and again leaves only one damaged file.
func TestDamagedFilesAreBounded(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	create(t, s, "a")
	var last string
	for range 3 {
		startWriter(t, s, marks{4000: 1})
		last = recordOf(s).Writer.Top
		if err := os.Truncate(filepath.Join(dir, "a", last), 1<<20); err != nil {
			t.Fatal(err)
		}
		s.ReleaseAll("sb-1")
	}
	want := []string{baseFile, last + damagedSuffix, recordFile}
	slices.Sort(want)
	if got := files(t, filepath.Join(dir, "a")); !slices.Equal(got, want) {
		t.Errorf("files %v, want %v", got, want)
	}
}

// If a removal cannot be made durable and cannot be undone, it is not reported as a success.
func TestRemovalThatIsNotDurable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "volumes")
	s := open(t, dir)
	create(t, s, "a")
	s.step = func(done string) {
		if done == "renamed the directory" { // makes the flush and the rename back fail
			if err := os.Rename(dir, dir+".away"); err != nil {
				t.Error(err)
			}
		}
	}
	if err := s.Remove(t.Context(), "a"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if _, err := s.Get("a"); !isError(err, false, false) {
		t.Errorf("after the removal: %v", err)
	}
}
