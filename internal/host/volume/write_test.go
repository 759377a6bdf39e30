package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/record"
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

// read10 returns the first byte of each of the clusters 4000 to 4009, except zeros.
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

// startWriter makes sandbox "sb-1" the writer of the volume "a", and writes to a new top. If the sandbox
// is the writer already, its earlier top becomes a layer.
func startWriter(t *testing.T, s *Store, m marks) {
	t.Helper()
	f, err := s.Write(t.Context(), "a", "sb-1")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write(t, f.Top, m)
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
	if err := s.Release(t.Context(), "a", "sb-2"); err != nil {
		t.Errorf("a release by another sandbox: %v", err)
	}
	if i, err := s.Get("a"); err != nil || i.Writer != "sb-1" || i.Layers != 0 {
		t.Errorf("%+v %v", i, err)
	}
	startWriter(t, s, marks{4001: 2}) // another VM of the sandbox
	startWriter(t, s, marks{4002: 3})
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

// TestCrashOfAWriter copies the files after every step of a writer's life, as a killed daemon would
// leave them. A daemon that starts with the copy releases the volume, and finds what was written.
func TestCrashOfAWriter(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "volumes")
	s := open(t, dir)
	create(t, s, "a")
	steps := 0
	var want marks
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
		if got := content(t, next, "a"); !equal(got, want) {
			t.Errorf("after %q: %v, want %v", done, got, want)
		}
		if err := next.Merge(t.Context(), "a"); err != nil {
			t.Errorf("after %q: %v", done, err)
		}
		if got := content(t, next, "a"); !equal(got, want) {
			t.Errorf("after %q and a merge: %v, want %v", done, got, want)
		}
	}
	startWriter(t, s, marks{4000: 1})
	want = marks{4000: 1}
	startWriter(t, s, marks{4001: 2})
	want = marks{4000: 1, 4001: 2}
	startWriter(t, s, nil) // this top stays empty
	startWriter(t, s, marks{4002: 3})
	want = marks{4000: 1, 4001: 2, 4002: 3}
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

// If the sandbox that writes to a volume still exists when a daemon starts, it stays the volume's
// writer.
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
	startWriter(t, next, marks{4001: 2})
	if err := next.Release(t.Context(), "a", "sb-1"); err != nil {
		t.Fatal(err)
	}
	if got, want := content(t, next, "a"), (marks{4000: 1, 4001: 2}); !equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// If a VM has damaged or removed its top, the volume has the content of the layers below.
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
		startWriter(t, s, marks{4001: 2})
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
