package volume

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/gate"
)

// marks is the content of a disk: the first byte of each cluster, by number. The tests write to
// clusters that are free in an empty file system.
type marks map[uint64]byte

const cluster = disklayer.ClusterSize

// write changes a top, as a VM does.
func write(t *testing.T, top *os.File, m marks) {
	t.Helper()
	l, err := disklayer.Open(top)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for c, b := range m {
		if _, err := top.WriteAt([]byte{b}, int64(c*cluster)); err != nil {
			t.Fatal(err)
		}
		if err := l.Set(c, 1); err != nil {
			t.Fatal(err)
		}
	}
}

// read returns the first byte of each of the clusters 4000 to 4009, except zeros.
func read10(t *testing.T, files []*os.File) marks {
	t.Helper()
	got := marks{}
	for c := uint64(4000); c < 4010; c++ {
		var p [1]byte
		for _, f := range files {
			if f == files[0] {
				if _, err := f.ReadAt(p[:], int64(c*cluster)); err != nil {
					t.Fatal(err)
				}
				continue
			}
			l, err := disklayer.Open(f)
			if err != nil {
				t.Fatal(err)
			}
			if l.Has(c) {
				if _, err := f.ReadAt(p[:], int64(c*cluster)); err != nil {
					t.Fatal(err)
				}
			}
			l.Close()
		}
		if p[0] != 0 {
			got[c] = p[0]
		}
	}
	return got
}

// recordOf returns the record of the volume "a".
func recordOf(s *Store) record.Volume {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byName["a"].Volume
}

// content returns the content of a volume, as a new writer sees it. Afterwards the volume has no
// writer.
func content(t *testing.T, s *Store, name string) marks {
	t.Helper()
	f, err := s.Write(t.Context(), name, "sb-reader")
	if err != nil {
		t.Fatal(err)
	}
	got := read10(t, append(f.Lower, f.Top))
	f.Close()
	if err := s.Release(t.Context(), name, "sb-reader"); err != nil {
		t.Fatal(err)
	}
	return got
}

func equal(a, b marks) bool {
	for c := uint64(4000); c < 4010; c++ {
		if a[c] != b[c] {
			return false
		}
	}
	return true
}

// startWriter makes sandbox "sb-1" the writer of the volume "a", and writes to it.
func startWriter(t *testing.T, s *Store, m marks) {
	t.Helper()
	f, err := s.Write(t.Context(), "a", "sb-1")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write(t, f.Top, m)
}

// branch replaces the top of "sb-1", and writes to the new one.
func branch(t *testing.T, s *Store, m marks) {
	t.Helper()
	next, frozen, err := s.Swap(t.Context(), "a", "sb-1")
	if err != nil {
		t.Fatal(err)
	}
	write(t, next, m)
	if err := errors.Join(next.Close(), frozen.Close(), s.Swapped("a", "sb-1", true)); err != nil {
		t.Fatal(err)
	}
}

func TestWriter(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	create(t, s, "a")
	startWriter(t, s, marks{4000: 1, 4001: 1})
	var inUse *InUseError
	if _, err := s.Write(t.Context(), "a", "sb-2"); !errors.As(err, &inUse) || inUse.SandboxID != "sb-1" {
		t.Errorf("a second writer: %v", err)
	}
	if err := s.Remove(t.Context(), "a"); !errors.As(err, &inUse) {
		t.Errorf("the removal of a volume in use: %v", err)
	}
	if err := s.Merge(t.Context(), "a"); !errors.As(err, &inUse) {
		t.Errorf("the merge of a volume in use: %v", err)
	}
	if _, _, err := s.Swap(t.Context(), "a", "sb-2"); !errors.As(err, &inUse) {
		t.Errorf("a branch of another sandbox: %v", err)
	}
	if err := s.Release(t.Context(), "a", "sb-2"); err != nil {
		t.Errorf("a release by another sandbox: %v", err)
	}
	if i, err := s.Get("a"); err != nil || i.Writer != "sb-1" || i.Layers != 0 {
		t.Errorf("%+v %v", i, err)
	}
	branch(t, s, marks{4001: 2})
	if err := s.Seal(t.Context(), "a", "sb-1"); err != nil { // a suspension
		t.Fatal(err)
	}
	if _, _, err := s.Swap(t.Context(), "a", "sb-1"); err == nil {
		t.Error("a branch without a VM")
	}
	startWriter(t, s, marks{4002: 3}) // a resumption
	if err := s.Release(t.Context(), "a", "sb-1"); err != nil {
		t.Fatal(err)
	}
	want := marks{4000: 1, 4001: 2, 4002: 3}
	for _, s := range []*Store{s, open(t, dir)} {
		if i, err := s.Get("a"); err != nil || i.Writer != "" || i.Layers != 3 {
			t.Errorf("%+v %v", i, err)
		}
		if got := content(t, s, "a"); !equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		if i, err := s.Get("a"); err != nil || i.Layers != 3 { // the reader's empty top was dropped
			t.Errorf("%+v %v", i, err)
		}
		if _, _, err := s.Swap(t.Context(), "a", "sb-1"); err == nil {
			t.Error("a branch without a writer")
		}
	}
	s = open(t, dir)
	if err := s.Merge(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if i, err := s.Get("a"); err != nil || i.Layers != 1 || len(files(t, filepath.Join(dir, "a"))) != 3 {
		t.Errorf("%+v %v %v", i, err, files(t, filepath.Join(dir, "a")))
	}
	if got := content(t, s, "a"); !equal(got, want) {
		t.Errorf("after the merge: %v, want %v", got, want)
	}
	if err := s.Remove(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}

// A branch that the VM did not make leaves no trace. A branch with an unknown outcome loses nothing.
func TestUnfinishedBranches(t *testing.T) {
	s := open(t, t.TempDir())
	create(t, s, "a")
	startWriter(t, s, marks{4000: 1})
	swap := func() *os.File {
		t.Helper()
		next, frozen, err := s.Swap(t.Context(), "a", "sb-1")
		if err != nil {
			t.Fatal(err)
		}
		frozen.Close()
		return next
	}
	swap().Close()
	if _, _, err := s.Swap(t.Context(), "a", "sb-1"); err == nil {
		t.Error("two branches at once")
	}
	if err := s.Swapped("a", "sb-1", false); err != nil {
		t.Fatal(err)
	}
	if err := s.Swapped("a", "sb-1", false); err == nil {
		t.Error("the end of no branch")
	}
	next := swap()
	write(t, next, marks{4001: 2})
	next.Close()
	if err := s.Release(t.Context(), "a", "sb-1"); err != nil {
		t.Fatal(err)
	}
	if got, want := content(t, s, "a"), (marks{4000: 1, 4001: 2}); !equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestCrashOfAWriter copies the files after every step of a writer's life, as a killed daemon would
// leave them. A daemon that starts with the copy releases the volume, and finds what was written.
func TestCrashOfAWriter(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "volumes")
	s := open(t, dir)
	create(t, s, "a")
	steps := 0
	var want, later marks // content before and after the step in progress
	s.step = func(done string) {
		steps++
		copied := filepath.Join(t.TempDir(), "volumes")
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		next := open(t, copied)
		r := recordOf(next)
		known := 2 + len(r.Files())
		if names := files(t, filepath.Join(copied, "a")); len(names) != known {
			t.Errorf("after %q: %v are left, want %d", done, names, known)
		}
		next.Recover(func(sandbox string) bool { return sandbox != "sb-1" })
		if i, err := next.Get("a"); err != nil || i.Writer != "" {
			t.Fatalf("after %q: %+v %v", done, i, err)
		}
		if got := content(t, next, "a"); !equal(got, want) && !equal(got, later) {
			t.Errorf("after %q: %v, want %v or %v", done, got, want, later)
		}
		if err := next.Merge(t.Context(), "a"); err != nil {
			t.Errorf("after %q: %v", done, err)
		}
		if got := content(t, next, "a"); !equal(got, want) && !equal(got, later) {
			t.Errorf("after %q and a merge: %v, want %v or %v", done, got, want, later)
		}
	}
	startWriter(t, s, marks{4000: 1})
	want = marks{4000: 1}
	later = marks{4000: 1, 4001: 2}
	branch(t, s, marks{4001: 2})
	want = later
	branch(t, s, nil)
	if err := s.Seal(t.Context(), "a", "sb-1"); err != nil {
		t.Fatal(err)
	}
	startWriter(t, s, marks{4002: 3})
	want, later = marks{4000: 1, 4001: 2, 4002: 3}, nil
	if err := s.Release(t.Context(), "a", "sb-1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Merge(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if steps < 20 {
		t.Errorf("only %d steps", steps)
	}
}

// A daemon that starts keeps the writers of sandboxes that exist.
func TestRecoverKeepsWriters(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	create(t, s, "a")
	startWriter(t, s, marks{4000: 1})
	next := open(t, dir)
	next.Recover(func(string) bool { return true })
	if i, err := next.Get("a"); err != nil || i.Writer != "sb-1" {
		t.Errorf("%+v %v", i, err)
	}
	branch(t, next, marks{4001: 2})
	if err := next.Release(t.Context(), "a", "sb-1"); err != nil {
		t.Fatal(err)
	}
	if got, want := content(t, next, "a"), (marks{4000: 1, 4001: 2}); !equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A VM may do anything to its top. The volume then has the content of the layers below.
func TestDamagedTops(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"truncated": func(path string) error { return os.Truncate(path, 1<<20) },
		"empty":     func(path string) error { return os.Truncate(path, 0) },
		"gone":      os.Remove,
		"no footer": func(path string) error {
			info, err := os.Stat(path)
			return errors.Join(err, os.Truncate(path, info.Size()-4096), os.Truncate(path, info.Size()))
		},
		"of another size": func(path string) error {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			return errors.Join(err, disklayer.Format(f, 16*mib-512), f.Close())
		},
	} {
		dir := t.TempDir()
		s := open(t, dir)
		create(t, s, "a")
		startWriter(t, s, marks{4000: 1})
		branch(t, s, marks{4001: 2})
		top := filepath.Join(dir, "a", recordOf(s).Writer.Top)
		if err := damage(top); err != nil {
			t.Fatal(err)
		}
		if name != "gone" { // a daemon that starts accepts the volume, because the VM may still run
			s = open(t, dir)
		}
		if err := s.Release(t.Context(), "a", "sb-1"); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, want := content(t, s, "a"), (marks{4000: 1}); !equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		_, err := os.Stat(top + damagedSuffix)
		if kept := err == nil; kept == (name == "gone") {
			t.Errorf("%s: the damaged file: %v", name, err)
		}
		if got := content(t, open(t, dir), "a"); !equal(got, marks{4000: 1}) {
			t.Errorf("%s: after a restart: %v", name, got)
		}
	}
}

// A top above a damaged one is lost too, because its data is of a disk that no longer exists.
func TestDamagedTopBelowAnother(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	create(t, s, "a")
	startWriter(t, s, marks{4000: 1})
	next, frozen, err := s.Swap(t.Context(), "a", "sb-1")
	if err != nil {
		t.Fatal(err)
	}
	write(t, next, marks{4001: 2})
	path := filepath.Join(dir, "a", recordOf(s).Writer.Top)
	if err := errors.Join(next.Close(), frozen.Close(), os.Truncate(path, 0)); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context(), "a", "sb-1"); err != nil {
		t.Fatal(err)
	}
	if got := content(t, s, "a"); !equal(got, nil) {
		t.Errorf("%v, want nothing", got)
	}
}

// A top that a process can still write to is not a part of the volume yet.
func TestReleaseWaitsForTheVM(t *testing.T) {
	s := open(t, t.TempDir())
	create(t, s, "a")
	f, err := s.Write(t.Context(), "a", "sb-1")
	if err != nil {
		t.Fatal(err)
	}
	s.patience = 1
	if err := s.Release(t.Context(), "a", "sb-1"); err == nil || !strings.Contains(err.Error(), "open for writing") {
		t.Errorf("%v", err)
	}
	if w := recordOf(s).Writer; w == nil || w.SandboxID != "sb-1" {
		t.Errorf("the record has the writer %+v", w)
	}
	f.Close()
	s.patience = 1 << 40
	if err := s.Release(t.Context(), "a", "sb-1"); err != nil {
		t.Error(err)
	}
}

// A snapshot of a volume is a volume of its own.
func TestSnapshots(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "volumes")
	s := open(t, dir)
	source := create(t, s, "a")
	startWriter(t, s, marks{4000: 1})
	req := Request{Name: "b", Owner: "token:other", Labels: map[string]string{"c": "d"}}
	var inUse *InUseError
	if _, err := s.Snapshot(t.Context(), "a", req); !errors.As(err, &inUse) {
		t.Errorf("a snapshot beside a writer: %v", err)
	}
	branch(t, s, marks{4001: 2})
	if err := s.Release(t.Context(), "a", "sb-1"); err != nil {
		t.Fatal(err)
	}
	// A daemon that is killed in between leaves the whole snapshot or none.
	steps := 0
	s.step = func(done string) {
		steps++
		copied := filepath.Join(t.TempDir(), "volumes")
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		next := open(t, copied)
		want := []string{"a"}
		if _, err := next.Get("b"); err == nil {
			want = []string{"a", "b"}
		}
		if names := files(t, copied); !slices.Equal(names, want) {
			t.Errorf("after %q: %v, want %v", done, names, want)
		}
		for _, name := range want {
			if got := content(t, next, name); !equal(got, marks{4000: 1, 4001: 2}) {
				t.Errorf("after %q: %s has %v", done, name, got)
			}
		}
	}
	b, err := s.Snapshot(t.Context(), "a", req)
	s.step = func(string) {}
	if err != nil || b.ID == source.ID || b.Owner != "token:other" || b.Labels["c"] != "d" || b.Layers != 2 ||
		b.SizeBytes != source.SizeBytes || steps != 4 {
		t.Fatalf("%+v %v, %d steps", b, err, steps)
	}
	if _, err := s.Snapshot(t.Context(), "a", req); !isError(err, true, false) {
		t.Errorf("a second snapshot with the name: %v", err)
	}
	if _, err := s.Snapshot(t.Context(), "none", Request{Name: "c"}); !isError(err, false, false) {
		t.Errorf("a snapshot of nothing: %v", err)
	}
	startWriter(t, s, marks{4000: 9})
	if err := errors.Join(s.Release(t.Context(), "a", "sb-1"), s.Merge(t.Context(), "a"), s.Remove(t.Context(), "a")); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{s, open(t, dir)} {
		if got := content(t, s, "b"); !equal(got, marks{4000: 1, 4001: 2}) {
			t.Errorf("%v", got)
		}
	}
	s.cfg.Most = 16 * mib
	if _, err := s.Snapshot(t.Context(), "b", Request{Name: "c", Owner: "token:other"}); err == nil {
		t.Error("a snapshot beyond the quota")
	}
}

// A copy keeps its content, whatever happens to the volume.
func TestCopies(t *testing.T) {
	dir := t.TempDir()
	s := open(t, filepath.Join(dir, "volumes"))
	create(t, s, "a")
	startWriter(t, s, marks{4000: 1})
	branch(t, s, marks{4000: 2})
	paths, size, err := s.Copy(t.Context(), "a", dir, "volume.0")
	if err != nil || len(paths) != 2 || size != s.List(nil)[0].SizeBytes {
		t.Fatal(paths, size, err)
	}
	if _, _, err := s.Copy(t.Context(), "a", dir, "volume.0"); err == nil {
		t.Error("a copy with the names of another copy")
	}
	if names := files(t, dir); !slices.Equal(names, []string{"volume.0.0", "volume.0.1", "volumes"}) {
		t.Errorf("files %v", names)
	}
	if err := errors.Join(s.Release(t.Context(), "a", "sb-1"), s.Merge(t.Context(), "a"), s.Remove(t.Context(), "a")); err != nil {
		t.Fatal(err)
	}
	var open []*os.File
	for _, p := range paths {
		f, err := os.Open(p)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		open = append(open, f)
	}
	if got, want := read10(t, open), (marks{4000: 1}); !equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if _, _, err := s.Copy(t.Context(), "a", dir, "x"); !isError(err, false, false) {
		t.Errorf("a copy of a volume that was removed: %v", err)
	}
}

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
	branch(t, s, marks{4001: 2})
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

// A record that names a layer twice, a path, or no top for a branch is refused.
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

// A volume that could not be released, because the VM had not closed it in time, is released by the
// next call that needs it. Until the VM has closed it, no call touches it.
func TestEndedWriter(t *testing.T) {
	list := map[string]func(s *Store) error{
		"write":  func(s *Store) error { return closed(s.Write(t.Context(), "a", "sb-2")) },
		"merge":  func(s *Store) error { return s.Merge(t.Context(), "a") },
		"remove": func(s *Store) error { return s.Remove(t.Context(), "a") },
		"snapshot": func(s *Store) error {
			_, err := s.Snapshot(t.Context(), "a", Request{Name: "b", Owner: "x"})
			return err
		},
		"copy": func(s *Store) error { _, _, err := s.Copy(t.Context(), "a", t.TempDir(), "x"); return err },
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

// On a full disk a volume cannot be released. It can be removed, which makes room, or be used again
// when there is room.
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

// If a removal cannot be made durable and cannot be undone, it is no success.
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

// twoLayers returns a store with the volume "a", which has two layers.
func twoLayers(t *testing.T) *Store {
	t.Helper()
	s := open(t, filepath.Join(t.TempDir(), "volumes"))
	create(t, s, "a")
	startWriter(t, s, marks{4000: 1})
	branch(t, s, marks{4001: 2})
	if err := s.Release(t.Context(), "a", "sb-1"); err != nil {
		t.Fatal(err)
	}
	return s
}

// While a merge copies data, other calls use the volume, and lose nothing.
func TestMergesHoldNoLock(t *testing.T) {
	s := twoLayers(t)
	s.step = func(done string) {
		if done != "merged layers" {
			return
		}
		s.step = func(string) {}
		_, _, err := s.Copy(t.Context(), "a", t.TempDir(), "x")
		if err := errors.Join(err, closed(s.Write(t.Context(), "a", "sb-0")), s.Release(t.Context(), "a", "sb-0")); err != nil {
			t.Error(err)
		}
		startWriter(t, s, marks{4002: 3})
	}
	if err := s.Merge(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if r := recordOf(s); r.Writer == nil || len(r.Layers) != 1 {
		t.Errorf("%+v", r)
	}
	s.ReleaseAll("sb-1")
	if got, want := content(t, s, "a"), (marks{4000: 1, 4001: 2, 4002: 3}); !equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	// A volume that is removed and created again during a merge gets nothing of it.
	s.step = func(done string) {
		if done == "merged layers" {
			s.step = func(string) {}
			if err := s.Remove(t.Context(), "a"); err != nil {
				t.Error(err)
			}
			create(t, s, "a")
		}
	}
	if err := s.Merge(t.Context(), "a"); err == nil {
		t.Error("a merge of a volume that was removed")
	}
	if names := files(t, s.path("a")); !slices.Equal(names, []string{baseFile, recordFile}) {
		t.Errorf("files %v", names)
	}
}

// A merge needs room for a copy of the layers, and a place among the merges of the owner.
func TestMergesAreBounded(t *testing.T) {
	s := twoLayers(t)
	full := errors.New("no room")
	s.cfg.Room = func(_ *os.File, bytes uint64) error {
		if bytes < 2*4096 {
			t.Errorf("room for %d bytes", bytes)
		}
		return full
	}
	before := files(t, s.path("a"))
	if err := s.Merge(t.Context(), "a"); !errors.Is(err, full) {
		t.Errorf("a merge without room: %v", err)
	}
	if after := files(t, s.path("a")); !slices.Equal(after, before) {
		t.Errorf("files %v, want %v", after, before)
	}
	s.cfg.Room = nil
	leave, err := s.merges.Enter(gate.Share{Key: "token:ci", Most: mergesAtOnce - 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Merge(ctx, "a") }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a second merge of the owner: %v", err)
	}
	if other, err := s.merges.Enter(gate.Share{Key: "token:other", Most: mergesAtOnce - 1}); err != nil {
		t.Errorf("another owner has no place: %v", err)
	} else {
		other()
	}
	leave()
	if err := s.Merge(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}

// A call that waits for the lock of a volume ends with its context.
func TestWaitsForAVolumeEnd(t *testing.T) {
	s := open(t, t.TempDir())
	create(t, s, "a")
	_, unlock, err := s.lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range map[string]func() error{
		"write":    func() error { return closed(s.Write(ctx, "a", "sb-1")) },
		"merge":    func() error { return s.Merge(ctx, "a") },
		"remove":   func() error { return s.Remove(ctx, "a") },
		"snapshot": func() error { _, err := s.Snapshot(ctx, "a", Request{Name: "b", Owner: "x"}); return err },
		"copy":     func() error { _, _, err := s.Copy(ctx, "a", t.TempDir(), "x"); return err },
		"release":  func() error { return s.Release(ctx, "a", "sb-1") },
	} {
		if err := call(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A list reads only the directories of the volumes that it contains.
func TestListsReadOnlyTheirVolumes(t *testing.T) {
	var log bytes.Buffer
	s := open(t, t.TempDir())
	s.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	create(t, s, "a")
	create(t, s, "b")
	// Reading the directory of "b" would be an error, which is logged.
	if err := errors.Join(os.RemoveAll(s.path("b")), os.WriteFile(s.path("b"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if list := s.List(func(name string) bool { return name == "a" }); len(list) != 1 || log.Len() > 0 {
		t.Errorf("%+v\n%s", list, &log)
	}
	if list := s.List(nil); len(list) != 2 || log.Len() == 0 {
		t.Errorf("%+v\n%s", list, &log)
	}
}

// A daemon that starts does not wait for the release of volumes, which are free at once.
func TestRecoverDoesNotWait(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	create(t, s, "a")
	f, err := s.Write(t.Context(), "a", "sb-1")
	if err != nil {
		t.Fatal(err)
	}
	write(t, f.Top, marks{4000: 1})
	s = open(t, dir)
	s.patience = 1 << 62 // a wait for the open top would not end
	s.Recover(func(string) bool { return false })
	if i, err := s.Get("a"); err != nil || i.Writer != "" {
		t.Errorf("%+v %v", i, err)
	}
	f.Close()
	s.ReleaseEnded(t.Context())
	if r := recordOf(s); r.Writer != nil || len(r.Layers) != 1 {
		t.Errorf("%+v", r)
	}
	if got := content(t, s, "a"); !equal(got, marks{4000: 1}) {
		t.Errorf("%v", got)
	}
}
