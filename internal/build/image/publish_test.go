package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestPublishOnceForManyCallers(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "images")
	var fills atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			err := publish(t.Context(), parent, "x", nil, func(staging string) error {
				fills.Add(1)
				return os.WriteFile(filepath.Join(staging, "f"), []byte("1"), 0o644)
			})
			if err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(parent, "x", "f")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := fills.Load(); n != 1 {
		t.Errorf("built %d times", n)
	}
	if got := names(t, parent); len(got) != 1 || got[0] != "x" {
		t.Errorf("left in the cache: %q", got)
	}
}

func TestPublishFailureLeavesNothing(t *testing.T) {
	parent := t.TempDir()
	boom := errors.New("boom")
	err := publish(t.Context(), parent, "x", nil, func(staging string) error {
		if err := os.WriteFile(filepath.Join(staging, "f"), nil, 0o600); err != nil {
			t.Error(err)
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
	if got := names(t, parent); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
}

// The computation of a disk's digest ends when its context ends.
func TestDigestEndsWithItsContext(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := fileSHA256(ctx, name); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestPublishAfterCrash(t *testing.T) {
	parent := t.TempDir()
	if err := os.MkdirAll(filepath.Join(parent, ".x.staging", "old"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(parent, ".x.lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := publish(t.Context(), parent, "x", nil, func(staging string) error {
		if got := names(t, staging); len(got) != 0 {
			t.Errorf("staging has %q of the dead build", got)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, parent); len(got) != 1 || got[0] != "x" {
		t.Errorf("left: %q", got)
	}
}

func TestPublishCancelledWhileWaiting(t *testing.T) {
	parent := t.TempDir()
	unlock, err := lock(t.Context(), filepath.Join(parent, ".x.lock"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	err = publish(ctx, parent, "x", cancel, func(string) error {
		t.Error("built while another process had the lock")
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
