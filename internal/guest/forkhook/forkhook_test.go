package forkhook

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/guest/reap"
	"github.com/forkd/forkd/internal/guest/userenv"
)

func hooks(t *testing.T, scripts map[string]string) *Hooks {
	t.Helper()
	h := New(reap.New(), func() []string { return []string{"PATH=" + userenv.DefaultPath, "FORKD_T=v"} })
	h.dir, h.sshDir = filepath.Join(t.TempDir(), "fork.d"), filepath.Join(t.TempDir(), "ssh")
	if scripts == nil {
		return h
	}
	if err := os.Mkdir(h.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(h.dir, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func TestHooksRunInOrderAndSeeTheEnvironment(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	h := hooks(t, map[string]string{"20-b": "echo b$FORKD_T >>" + out, "10-a": "echo a >>" + out,
		"30-c": "echo no >>" + out})
	if err := os.Chmod(filepath.Join(h.dir, "30-c"), 0o644); err != nil { // not executable, like a README
		t.Fatal(err)
	}
	if err := h.Run(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(out); string(got) != "a\nbv\n" {
		t.Errorf("the hooks wrote %q, %v", got, err)
	}
}

func TestAFailedHookIsTheErrorAndEndsTheRest(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	h := hooks(t, map[string]string{"1": "echo 'no licence' >&2; exit 3", "2": "touch " + out})
	err := h.Run()
	if err == nil || !strings.Contains(err.Error(), "fork.d/1: exit status 3: no licence") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("the next hook ran")
	}
	if err := hooks(t, map[string]string{"1": "kill -9 $$"}).Run(); err == nil ||
		!strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("error %v", err)
	}
}

func TestAHookThatHangsIsKilledWithWhatItStarted(t *testing.T) {
	h := hooks(t, map[string]string{"1": "echo waiting; sleep 1000"})
	h.limit = 300 * time.Millisecond
	err := h.Run()
	if err == nil || !strings.Contains(err.Error(), "not done") || !strings.Contains(err.Error(), "waiting") {
		t.Errorf("error %v", err)
	}
}

func TestWhatAHookLeavesRunningHoldsNobodyUp(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	h := hooks(t, map[string]string{"1": "sleep 1000 & echo $! >" + pid})
	if err := h.Run(); err != nil { // returns an error after the time limit
		t.Error(err)
	}
	if out, err := exec.Command("/bin/sh", "-c", "kill $(cat "+pid+")").CombinedOutput(); err != nil {
		t.Errorf("the process in the background is gone: %v: %s", err, out)
	}
}

func TestWithoutHooksAndKeysNothingIsAllocatedButTwoPaths(t *testing.T) {
	h := hooks(t, nil)
	if n := testing.AllocsPerRun(100, func() {
		if err := h.Run(); err != nil {
			t.Error(err)
		}
	}); n > 2 {
		t.Errorf("%v allocations", n)
	}
}

func TestSSHHostKeysAreReplaced(t *testing.T) {
	h := hooks(t, nil)
	if err := os.Mkdir(h.sshDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := h.Run(); err != nil {
		t.Fatalf("without keys: %v", err)
	}
	path := func(name string) string { return filepath.Join(h.sshDir, name) }
	for _, name := range []string{"ssh_host_rsa_key", "ssh_host_rsa_key.pub", "ssh_host_ed25519_key",
		"ssh_host_ed25519_key.pub"} {
		if err := os.WriteFile(path(name), []byte("shared"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	keygen, err := exec.LookPath(sshKeygen)
	if err != nil {
		if err := h.Run(); err == nil || !strings.Contains(err.Error(), sshKeygen) {
			t.Errorf("without %s: %v", sshKeygen, err)
		}
		t.Skip(err)
	}
	var last string
	for range 2 {
		if err := h.Run(); err != nil {
			t.Fatal(err)
		}
		left, err := os.ReadDir(h.sshDir)
		if err != nil || len(left) != 2 {
			t.Fatalf("%v, %v", left, err)
		}
		pub, err := exec.Command(keygen, "-y", "-f", path("ssh_host_ed25519_key")).Output()
		if err != nil || string(pub) == last {
			t.Fatalf("key %q after %q, %v", pub, last, err)
		}
		last = string(pub)
		stored, err := os.ReadFile(path("ssh_host_ed25519_key.pub"))
		if err != nil || strings.Fields(string(stored))[1] != strings.Fields(last)[1] {
			t.Errorf("public key %q of %q, %v", stored, last, err)
		}
	}
}

// A directory without host keys is searched once. It is searched again only after a file was added.
func TestADirectoryWithoutKeysIsSearchedOnce(t *testing.T) {
	h := hooks(t, nil)
	if h.Any() {
		t.Error("there is something to do without a directory")
	}
	if err := os.Mkdir(h.sshDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := h.Run(); err != nil || !h.Any() {
		t.Errorf("a directory that is as new as the search is not to be trusted (%v)", err)
	}
	time.Sleep(reliableAge + 100*time.Millisecond)
	if err := h.Run(); err != nil || h.Any() {
		t.Errorf("it is searched again (%v)", err)
	}
	if n := testing.AllocsPerRun(10, func() { h.Any() }); n != 0 {
		t.Errorf("a fork allocates %v times", n)
	}
	if err := os.WriteFile(filepath.Join(h.sshDir, "ssh_host_rsa_key"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !h.Any() {
		t.Error("a new key is not noticed")
	}
}
