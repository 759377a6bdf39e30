package difftree

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/diffproto"
)

func TestUnified(t *testing.T) {
	numbers := func(from, to int, except ...int) string {
		var b strings.Builder
	lines:
		for i := from; i <= to; i++ {
			for _, e := range except {
				if e == i {
					continue lines
				}
			}
			fmt.Fprintf(&b, "%d\n", i)
		}
		return b.String()
	}
	for name, c := range map[string]struct{ old, now, want string }{
		"equal":          {"a\nb\n", "a\nb\n", ""},
		"empty":          {"", "", ""},
		"all added":      {"", "a\nb\n", "@@ -0,0 +1,2 @@\n+a\n+b\n"},
		"all deleted":    {"a\n", "", "@@ -1 +0,0 @@\n-a\n"},
		"no line end":    {"a\nb", "a\nb\n", "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n"},
		"in the middle":  {numbers(1, 9), numbers(1, 9, 5), "@@ -2,7 +2,6 @@\n 2\n 3\n 4\n-5\n 6\n 7\n 8\n"},
		"at the end":     {numbers(1, 5), numbers(1, 6), "@@ -3,3 +3,4 @@\n 3\n 4\n 5\n+6\n"},
		"joined":         {numbers(1, 9), numbers(1, 9, 1, 8), "@@ -1,9 +1,7 @@\n-1\n 2\n 3\n 4\n 5\n 6\n 7\n-8\n 9\n"},
		"two hunks":      {numbers(1, 20), numbers(1, 20, 2, 19), "@@ -1,5 +1,4 @@\n 1\n-2\n 3\n 4\n 5\n@@ -16,5 +15,4 @@\n 16\n 17\n 18\n-19\n 20\n"},
		"moved":          {"a\nb\nc\n", "c\na\nb\n", "@@ -1,3 +1,3 @@\n+c\n a\n b\n-c\n"},
		"repeated lines": {"x\nx\nx\n", "x\nx\n", "@@ -1,3 +1,2 @@\n x\n x\n-x\n"},
	} {
		got, added, deleted := unified([]byte(c.old), []byte(c.now))
		if string(got) != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if a, d := count(c.want, "+"), count(c.want, "-"); added != a || deleted != d {
			t.Errorf("%s: %d lines added, %d deleted, want %d and %d", name, added, deleted, a, d)
		}
	}
}

// count returns how many lines begin with a mark.
func count(text, mark string) int { return strings.Count("\n"+text, "\n"+mark) }

// For random texts, patch(1) turns the old text into the new text.
func TestPatchesApply(t *testing.T) {
	program, err := exec.LookPath("patch")
	if err != nil {
		t.Skip("no patch command")
	}
	rng := rand.New(rand.NewPCG(3, 4))
	text := func() []byte {
		var b bytes.Buffer
		for range rng.IntN(60) {
			fmt.Fprintf(&b, "%d\n", rng.IntN(12))
		}
		if rng.IntN(3) == 0 {
			b.WriteString("end")
		}
		return b.Bytes()
	}
	for range 100 {
		old := text()
		now := text()
		if rng.IntN(2) == 0 { // a few changes
			now = bytes.Clone(old)
			for range rng.IntN(4) {
				if len(now) > 0 {
					i := rng.IntN(len(now))
					now = append(now[:i:i], append([]byte("changed\n"), now[i:]...)...)
				}
			}
		}
		patch, _, _ := unified(old, now)
		var wire bytes.Buffer
		must(t, diffproto.WriteEntry(&wire, &diffproto.Entry{Path: "/a", New: diffproto.Node{Type: diffproto.Regular},
			Patch: patch}))
		if _, _, err := diffproto.NewReader(&wire, "/").Next(); err != nil {
			t.Fatalf("the daemon refuses %q: %v", patch, err)
		}
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, old, 0o600); err != nil {
			t.Fatal(err)
		}
		if len(patch) > 0 {
			cmd := exec.Command(program, "--fuzz=0", "-s", file)
			cmd.Stdin = strings.NewReader("--- a\n+++ b\n" + string(patch))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s\n%q to %q:\n%s", err, out, old, now, patch)
			}
		}
		got, err := os.ReadFile(file)
		if os.IsNotExist(err) { // patch removes a file that is empty
			err = nil
		}
		if err != nil || !bytes.Equal(got, now) {
			t.Fatalf("%q, want %q (%v):\n%s", got, now, err, patch)
		}
	}
}
