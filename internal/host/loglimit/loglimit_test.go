package loglimit

import (
	"log/slog"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestLines(t *testing.T) {
	var out strings.Builder
	log := slog.New(slog.NewTextHandler(&out, nil))
	l := New(0, 3)
	for range 10 {
		l.Log(log, slog.LevelInfo, "x", "n", 1)
	}
	if n := strings.Count(out.String(), "left_out=0\n"); n != 3 || strings.Count(out.String(), "\n") != n {
		t.Errorf("want 3 lines: %s", out.String())
	}
	out.Reset()
	l.limiter.SetBurst(4)
	l.limiter.SetLimit(1e9)
	for !strings.Contains(out.String(), "\n") { // fails at the time limit of the test
		l.Log(log, slog.LevelWarn, "x", "n", 1)
	}
	if !strings.Contains(out.String(), "level=WARN msg=x n=1 left_out=") || strings.Contains(out.String(), "left_out=0") {
		t.Errorf("the lines that were left out are not counted: %s", out.String())
	}
}

func TestCut(t *testing.T) {
	if got := Cut("short"); got != "short" {
		t.Error(got)
	}
	if got := Cut(strings.Repeat("ü", maxText)); len(got) != maxText || !utf8.ValidString(got) {
		t.Errorf("%d bytes", len(got))
	}
	if got := Cut("x" + strings.Repeat("ü", maxText)); len(got) != maxText || !utf8.ValidString(got) {
		t.Errorf("%d bytes", len(got))
	}
}
