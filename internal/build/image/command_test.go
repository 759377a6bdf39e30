package image

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// script writes an executable shell script and returns its path.
func script(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\nset -eu\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// The source here is a process that has written its archive and exits only after tar, as mmdebstrap
// does on a slow disk.
func TestTarDoesNotWaitForTheSource(t *testing.T) {
	needTools(t)
	work := t.TempDir()
	ended := filepath.Join(work, "ended")
	tar, err := lookPath(toolTar)
	if err != nil {
		t.Fatal(err)
	}
	// Like the real tar it reads a pipe up to its end.
	script(t, work, "tar", tar+` "$@"; cat >/dev/null; touch `+ended+"\n")
	file := filepath.Join(work, "archive")
	if err := os.WriteFile(file, archive(t, reg("a")), 0o600); err != nil {
		t.Fatal(err)
	}
	source := script(t, work, "source", `
cat `+file+`
n=0
until [ -e `+ended+` ]; do
	n=$((n+1)); [ $n -lt 300 ] || { echo "tar waits for its source" >&2; exit 1; }
	sleep 0.02
done
`)
	t.Setenv("PATH", work+":"+os.Getenv("PATH"))
	root := t.TempDir()
	err = extract(t.Context(), root, &tarFilter{maxBytes: 1 << 20}, func(ctx context.Context, w io.Writer) error {
		return run(ctx, nil, w, nil, source)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, root); !slices.Contains(got, "a") {
		t.Errorf("extracted %q, want a", got)
	}
}

// slowWriter delays the first write, like a tool that writes to a slow disk.
type slowWriter struct {
	strings.Builder
	pause time.Duration
}

func (w *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(w.pause)
	w.pause = 0
	return w.Builder.Write(p)
}

func TestRunPassesEverythingOnHoweverLongItTakes(t *testing.T) {
	t.Parallel()
	w := &slowWriter{pause: cleanupTime + time.Second}
	if err := run(t.Context(), nil, w, nil, "echo", "all"); err != nil {
		t.Fatal(err)
	}
	if w.String() != "all\n" {
		t.Errorf("passed on %q", w.String())
	}
}

func TestRunKillsWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	line := func(text string) { cancel() }
	err := run(ctx, nil, io.Discard, line, "sh", "-c", `trap "" TERM; echo ready >&2; while :; do sleep 1; done`)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("run ended with %v, want context.Canceled", err)
	}
}
