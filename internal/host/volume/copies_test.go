package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/forkd/forkd/internal/format/disklayer"
)

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
	startWriter(t, s, marks{4001: 2})
	if err := s.Release(t.Context(), "a", "sb-1"); err != nil {
		t.Fatal(err)
	}
	// If a daemon is killed between two steps, the whole snapshot is left, or nothing of it.
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
	if err := errors.Join(s.Release(t.Context(), "a", "sb-1"), s.Merge(t.Context(), "a"),
		s.Remove(t.Context(), "a")); err != nil {
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
	startWriter(t, s, marks{4000: 2})
	d := Disk{Sandbox: "sb-2", Name: "a", Copy: filepath.Join(dir, "volume0")}
	if err := s.Copy(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if err := s.Copy(t.Context(), d); err == nil {
		t.Error("a copy with the directory of another copy")
	}
	if err := errors.Join(s.Release(t.Context(), "a", "sb-1"), s.Merge(t.Context(), "a"),
		s.Remove(t.Context(), "a")); err != nil {
		t.Fatal(err)
	}
	f, err := s.OpenCopy(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, want := read10(t, append(f.Lower, f.Top)), (marks{4000: 1}); !equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	d.Copy = filepath.Join(dir, "x")
	if err := s.Copy(t.Context(), d); !isError(err, false, false) {
		t.Errorf("a copy of a volume that was removed: %v", err)
	}
}

// If a volume has a writer, a copy of the volume has the data from the writer's latest branch, or
// from its mount. The copy is refused while the writer's VM may still change that data, or if the
// VM has damaged the data.
func TestCopiesBesideAWriter(t *testing.T) {
	dir := t.TempDir()
	s := open(t, filepath.Join(dir, "volumes"))
	create(t, s, "a")
	startWriter(t, s, marks{4000: 1})
	startWriter(t, s, marks{4001: 2})
	copied := func(name string) (marks, error) {
		t.Helper()
		d := Disk{Sandbox: "sb-2", Name: "a", Copy: filepath.Join(dir, name)}
		if err := s.Copy(t.Context(), d); err != nil {
			if _, err := os.Lstat(d.Copy); err == nil {
				t.Errorf("%s: files are left", name)
			}
			return nil, err
		}
		f, err := s.OpenCopy(t.Context(), d)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return read10(t, append(f.Lower, f.Top)), nil
	}
	if got, err := copied("mount"); err != nil || !equal(got, marks{4000: 1}) {
		t.Errorf("before a branch: %v, %v", got, err)
	}
	former, err := os.OpenFile(filepath.Join(dir, "volumes", "a", recordOf(s).Writer.Top), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, list := swapTop(t, s, Disk{Sandbox: "sb-1", Name: "a"}, marks{4002: 3})
	for _, f := range list {
		f.Close()
	}
	var inUse *InUseError
	s.patience = 0
	if _, err := copied("early"); !errors.As(err, &inUse) || !inUse.Branching || inUse.SandboxID != "sb-1" {
		t.Errorf("the former top is open for writing: %v", err)
	}
	former.Close()
	if got, err := copied("branch"); err != nil || !equal(got, marks{4000: 1, 4001: 2}) {
		t.Errorf("after a branch: %v, %v", got, err)
	}
	if err := os.Truncate(former.Name(), 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := copied("damaged"); !errors.Is(err, disklayer.ErrFormat) {
		t.Errorf("a damaged layer: %v", err)
	}
}

// copyOf makes a copy of the volume "a".
func copyOf(t *testing.T, ctx context.Context, s *Store) error {
	t.Helper()
	return s.Copy(ctx, Disk{Sandbox: "sb-9", Name: "a", Copy: filepath.Join(t.TempDir(), "copy")})
}
