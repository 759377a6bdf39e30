package image

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

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
