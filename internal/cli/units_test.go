package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// maxExposure is the maximum score of `systemd-analyze security` for the system's unit. Scores are
// between 0 (an attacker can reach nothing) and 10. The daemon cannot have a score near 0, because
// it creates namespaces and mounts for its jails.
const maxExposure = 6.0

// unit returns the text of a unit, and the path of a copy in a test directory. The unit's program
// exists in that directory.
func unit(t *testing.T, name string) (text, path string) {
	t.Helper()
	p, err := os.ReadFile("../../packaging/systemd/" + name)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, bytes.ReplaceAll(p, []byte("/usr/bin/forkd"), []byte("/bin/true")), 0o600); err != nil {
		t.Fatal(err)
	}
	return string(p), path
}

// systemd accepts each unit unchanged, even if the other units are missing.
func TestUnitsAreValid(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	for name, scope := range map[string]string{"forkd.service": "--system", "forkd-user.service": "--user",
		"forkd-sandboxes.service": "--system"} {
		_, path := unit(t, name)
		cmd := exec.Command(analyze, "verify", "--man=no", "--recursive-errors=no", scope, path)
		cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+t.TempDir())
		out, _ := cmd.CombinedOutput() // the output says more than the exit code
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, name) && !strings.Contains(line, "forkd-sandboxes.service not found") {
				t.Errorf("%s", line)
			}
		}
	}
	_, path := unit(t, "forkd.service")
	out, err := exec.Command(analyze, "security", "--offline=yes", path).CombinedOutput()
	m := regexp.MustCompile(`Overall exposure level for forkd.service: ([0-9.]+)`).FindSubmatch(out)
	if m == nil {
		t.Fatalf("%v: %s", err, out)
	}
	score, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil || score > maxExposure {
		t.Errorf("exposure %s, want at most %g", m[1], maxExposure)
	}
	t.Logf("exposure %.1f", score)
}

// The units start the daemon with existing options. Stopping a unit does not kill the daemon's
// sandboxes.
func TestUnitsStartTheDaemonAndKeepSandboxes(t *testing.T) {
	for _, name := range []string{"forkd.service", "forkd-user.service"} {
		text, _ := unit(t, name)
		m := regexp.MustCompile(`(?ms)^ExecStart=/usr/bin/forkd daemon (.*?) ?\$FORKD_OPTIONS$`).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("%s does not start the daemon with $FORKD_OPTIONS", name)
		}
		flags := newDaemonCmd().Flags()
		if err := flags.Parse(strings.Fields(strings.ReplaceAll(m[1], "\\\n", " "))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if dir, _ := flags.GetString("cgroup"); !strings.HasSuffix(dir, ".slice/forkd-sandboxes.service") {
			t.Errorf("%s puts sandboxes into %q: systemd before 254 cannot restart a daemon above them", name, dir)
		}
		flags.Visit(func(f *pflag.Flag) {
			if f.Name == "kill-on-exit" {
				t.Errorf("%s ends all sandboxes with the daemon", name)
			}
		})
		checkLines(t, name, text, "KillMode=process", "OOMPolicy=continue", "Requires=forkd-sandboxes.service",
			"MemoryMax=75%", "OOMScoreAdjust=300") // if memory runs out, the kernel kills the daemon and not a sandbox
		// forkd opens snapshots with openat2. With this setting, systemd blocks openat2 (see
		// seccomp_restrict_suid_sgid in systemd).
		if strings.Contains(text, "\nRestrictSUIDSGID=yes\n") {
			t.Errorf("%s has RestrictSUIDSGID: no snapshot can be opened", name)
		}
	}
	text, _ := unit(t, "forkd-sandboxes.service")
	checkLines(t, "forkd-sandboxes.service", text, "Delegate=cpu cpuset io memory pids", "OOMPolicy=continue")
}

func checkLines(t *testing.T, name, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("%s lacks %s", name, line)
		}
	}
}
