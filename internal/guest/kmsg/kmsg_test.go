package kmsg

import (
	"strings"
	"testing"
)

func TestRecordIsOneBoundedLineWithLevel(t *testing.T) {
	var b strings.Builder
	New(&b).Errorf("a\nb %s", strings.Repeat("x", 5000))
	got := b.String()
	if !strings.HasPrefix(got, "<3>forkd-agent: a b xxx") || strings.Count(got, "\n") != 1 || len(got) > 1000 {
		t.Fatalf("record of %d bytes: %.60q", len(got), got)
	}
}

func TestPlainUsesWords(t *testing.T) {
	var b strings.Builder
	NewPlain(&b).Warnf("no %s", "python3")
	if b.String() != "warning: forkd-agent: no python3\n" {
		t.Fatalf("got %q", b.String())
	}
}
