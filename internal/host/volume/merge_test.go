package volume

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/forkd/forkd/internal/gate"
)

// twoLayers returns a store with the volume "a", which has two layers.
func twoLayers(t *testing.T) *Store {
	t.Helper()
	s := open(t, filepath.Join(t.TempDir(), "volumes"))
	create(t, s, "a")
	startWriter(t, s, marks{4000: 1})
	startWriter(t, s, marks{4001: 2})
	if err := s.Release(t.Context(), "a", "sb-1"); err != nil {
		t.Fatal(err)
	}
	return s
}

// While a merge copies data, other calls can use the volume, and no data is lost.
func TestMergesHoldNoLock(t *testing.T) {
	s := twoLayers(t)
	s.step = func(done string) {
		if done != "merged layers" {
			return
		}
		s.step = func(string) {}
		err := copyOf(t, t.Context(), s)
		if err := errors.Join(err, closed(s.Write(t.Context(), "a", "sb-0")),
			s.Release(t.Context(), "a", "sb-0")); err != nil {
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
	// If a volume is removed and created again during a merge, it gets no data from the merge.
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

// A merge needs room for a copy of the layers. The number of concurrent merges of an owner is
// limited.
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

// A call that waits for the lock of a volume ends when its context ends.
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
		"copy":     func() error { return copyOf(t, ctx, s) },
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
	// If List read the directory of "b", it would log an error.
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

// A daemon that starts does not wait until volumes are released. The volumes can be used
// immediately.
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
