package bochs

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const never = time.Hour

// The console, and the fact that Bochs has exited, determine the result of a run. The exit status
// of Bochs says nothing useful.
func TestWatch(t *testing.T) {
	ended := errors.New("exit status 1")
	for _, c := range []struct {
		name, console string
		end           bool          // Bochs has exited
		boot, silent  time.Duration // CPU time; it grows by a second between two looks
		want          string        // part of the error; empty: no error
	}{
		{"in order", "forkd: alive at 1\r\nhello\r\nforkd: done\r\n[ 9.9] reboot: Power down\r\n", true, never, never, ""},
		{"cut short", "forkd: alive at 1\nhello\nforkd: don", true, never, never, "before its job"},
		{"done, but still on", "hello\nforkd: done\n", false, time.Millisecond, never, "hangs"},
		{"nothing at all", "", false, time.Millisecond, never, "hangs"},
		{"silent", "forkd: alive at 1\nhello\n", false, never, time.Millisecond, "hangs"},
		{"panic", "hello\n[ 3.1] Kernel panic - not syncing: x\n", false, never, never, "kernel panicked"},
		{"no KVM", "hello\nforkd: failed: load module x\n", false, never, never, "load module x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), fileConsole)
			if c.console != "" {
				if err := os.WriteFile(path, []byte(c.console), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			ends := make(chan error, 1)
			if c.end {
				ends <- ended
			}
			var lines []string
			var used time.Duration
			w := watcher{
				path: path, limits: limits{boot: c.boot, silent: c.silent, idle: never},
				said: func(s string) { lines = append(lines, s) },
				used: func() time.Duration { used += time.Second; return used },
			}
			err := w.watch(t.Context(), ends)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if strings.Contains(c.console, "hello\r\n") && !slices.Contains(lines, "hello") ||
				strings.Contains(w.last(9), lineAlive) {
				t.Errorf("said %q, last %q", lines, w.last(9))
			}
		})
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ended)
	w := watcher{path: "nowhere", used: func() time.Duration { return 0 }, limits: defaultLimits()}
	if err := w.watch(ctx, nil); !errors.Is(err, ended) {
		t.Errorf("a run that is given up: %v", err)
	}
}

// The options of a host, and the options that Bochs 3.0 needs, are in the right files.
func TestConfiguration(t *testing.T) {
	h := Host{CPU: Haswell, KVMIntel: []string{"ept=0"}}
	if got := h.moduleOptions(); got != "enable_apicv=0 ept=0" {
		t.Errorf("options of kvm-intel: %q", got)
	}
	rc := h.configuration(Emulator{"/bochs"}, "/run")
	for _, want := range []string{"model=corei7_haswell_4770,", `path="/run/disk.img"`, `dev="/run/console.log"`,
		`romimage: file="/bochs/usr/share/bochs/BIOS-bochs-latest"`, "ips=250000000"} {
		if !strings.Contains(rc, want) {
			t.Errorf("the configuration lacks %s:\n%s", want, rc)
		}
	}
	if !strings.Contains(cmdline, "tsc_early_khz=250000") {
		t.Errorf("the TSC and the instructions are counted differently: %s", cmdline)
	}
}

// cpuTime returns the CPU time of another process.
func TestCPUTime(t *testing.T) {
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	for cpuTime(cmd.Process.Pid) < 50*time.Millisecond {
		if t.Context().Err() != nil {
			t.Fatal("a process that spins uses no CPU time")
		}
	}
}
