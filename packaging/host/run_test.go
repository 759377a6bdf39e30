package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The result of a run is read from the host's serial ports, regardless of QEMU's exit status.
func TestBoots(t *testing.T) {
	for _, c := range []struct {
		name, qemu string
		want       string // part of the error; empty if there must be none
		said       []string
	}{
		{"in order", `echo "ok a" >>report.log; echo "forkd: done" >>report.log`, "", []string{"ok a"}},
		{"after a reboot", `[ -e again ] && echo "forkd: done" >>report.log && exit; touch again
			echo "ok a" >>report.log; echo "forkd: reboot" >>report.log`, "", []string{"ok a"}},
		{"reboots for ever", `echo "forkd: reboot" >>report.log`, "not done after", nil},
		{"with a failed step", `echo "failed a" >>report.log; echo "forkd: failed" >>report.log`, "steps failed",
			[]string{"failed a"}},
		{"cut short", `echo "ok a" >>report.log; echo "forkd: don" >>report.log`, "before its steps did",
			[]string{"ok a", "forkd: don"}},
		{"panic", `echo "Kernel panic - not syncing" >>console.log`, "panicked", nil},
		{"panic that stays", `echo "Kernel panic - not syncing" >>console.log; exec sleep 600`, "panicked", nil},
		{"not started", `echo "no such machine"; exit 1`, "no such machine", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := host{dir: t.TempDir(), qemu: filepath.Join(t.TempDir(), "qemu")}
			if err := os.WriteFile(h.qemu, []byte("#!/bin/sh\n"+c.qemu+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			var said []string
			h.said = func(line string) { said = append(said, line) }
			err := h.untilDone(t.Context())
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if !slices.Equal(said, c.said) {
				t.Errorf("said %q, want %q", said, c.said)
			}
		})
	}
}
