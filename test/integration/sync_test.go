package integration_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
)

// syncing is a running `forkd sync`.
type syncing struct {
	cmd *exec.Cmd
	out bytes.Buffer // read it only after the end
}

func (d *daemon) sync(t *testing.T, args ...string) *syncing {
	t.Helper()
	s := &syncing{cmd: exec.Command(d.f.program, append([]string{"sync"}, args...)...)}
	s.cmd.Env = append(os.Environ(), "FORKD_URL=unix://"+filepath.Join(d.run, "forkd.sock"))
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

// end sends a signal and waits.
func (s *syncing) end(t *testing.T, sig syscall.Signal) string {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	_ = s.cmd.Wait() // the signal determines the exit code
	return s.out.String()
}

// TestSync keeps a directory of this host and a directory of a sandbox in sync while both sides
// change, the command and the daemon are killed, and the sandbox is rolled back, suspended and ended.
func TestSync(t *testing.T) {
	d := load(t).start(t)
	box := d.fork(t, 1)[0]
	dir := t.TempDir()
	here := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	wantHere := func(name, text string) {
		t.Helper()
		eventually(t, quietLimit, func() error {
			if p, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(p) != text {
				return fmt.Errorf("%s here is %.50q, %w", name, p, err)
			}
			return nil
		})
	}
	wantThere := func(name, text string) {
		t.Helper()
		eventually(t, quietLimit, func() error {
			if got := d.sh(t, box.ID, "cat /root/work/"+name+" 2>/dev/null || true"); got != text {
				return fmt.Errorf("%s there is %.50q", name, got)
			}
			return nil
		})
	}
	here("a", "one\n")
	here("sub/b", "two\n")
	if err := os.Symlink("sub/b", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	s := d.sync(t, "--both", dir, box.ID+":/root/work")
	wantThere("link", "two\n")
	here("a", "three\n")
	wantThere("a", "three\n")
	d.sh(t, box.ID, "mkdir /root/work/new && echo four >/root/work/new/c && ln -s c /root/work/new/l && "+
		"ln -s /etc/passwd /root/work/out")
	wantHere("new/l", "four\n")
	if _, err := os.Lstat(filepath.Join(dir, "out")); err == nil {
		t.Error("a link that leads out of the directory came back")
	}
	if err := os.Remove(filepath.Join(dir, "sub/b")); err != nil {
		t.Fatal(err)
	}
	wantThere("sub/b", "")

	// The sync does not end when the daemon is killed.
	d.crash(t)
	here("a", "during the restart\n")
	d.launch(t)
	here("after", "the restart\n")
	wantThere("after", "the restart\n")

	// Both sides change a file while the command is stopped.
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	here("after", "here\n")
	d.sh(t, box.ID, "echo there >/root/work/after; echo free >/root/work/free")
	if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	wantHere("free", "free\n")
	wantHere("after", "here\n")
	if out := s.end(t, syscall.SIGINT); !strings.Contains(out, `conflict: "after"`) {
		t.Errorf("forkd sync printed %q", out)
	}
	d.cli(t, 0, "sync", "--both", "--once", "--prefer", "host", dir, box.ID+":/root/work")
	wantThere("after", "here\n")

	d.syncKilled(t, dir, box.ID)
	d.syncAcrossStates(t, dir, box, here, wantThere)
}

// syncKilled kills the command while it copies a large file to the host. The host never has only a
// part of the file.
func (d *daemon) syncKilled(t *testing.T, dir, id string) {
	t.Helper()
	const size = 48 << 20
	d.sh(t, id, "head -c 48M /dev/urandom >/root/large && mv /root/large /root/work/large")
	for _, wait := range []time.Duration{200, 600, 1200} {
		s := d.sync(t, "--both", dir, id+":/root/work")
		time.Sleep(wait * time.Millisecond)
		s.end(t, syscall.SIGKILL)
		if info, err := os.Stat(filepath.Join(dir, "large")); err == nil && info.Size() != size {
			t.Errorf("killed after %d ms: the file has %d bytes", wait, info.Size())
		}
	}
	d.cli(t, 0, "sync", "--both", "--once", dir, id+":/root/work")
	sum, err := exec.Command("sha256sum", filepath.Join(dir, "large")).Output()
	if err != nil {
		t.Fatal(err)
	}
	if there := d.sh(t, id, "sha256sum </root/work/large"); strings.Fields(there)[0] != strings.Fields(string(sum))[0] {
		t.Errorf("the large file: %s here, %s there", sum, there)
	}
}

// syncAcrossStates rolls the sandbox back, suspends it and kills it while the command syncs in one
// direction only.
func (d *daemon) syncAcrossStates(t *testing.T, dir string, box client.Sandbox, here,
	wantThere func(name, text string)) {
	t.Helper()
	if _, err := d.Branch(d.ctx(t, bakeLimit), box.ID, client.BranchRequest{Tag: "before-sync"}); err != nil {
		t.Fatal(err)
	}
	s := d.sync(t, dir, box.ID+":/root/work")
	here("a", "newer than the branch\n")
	wantThere("a", "newer than the branch\n")
	if _, err := d.Rollback(d.ctx(t, bakeLimit), box.ID, "before-sync"); err != nil {
		t.Fatal(err)
	}
	wantThere("a", "newer than the branch\n")

	if _, err := d.Suspend(d.ctx(t, bakeLimit), box.ID); err != nil {
		t.Fatal(err)
	}
	here("a", "while it is suspended\n")
	time.Sleep(3 * time.Second) // longer than the command waits before it copies a change
	if now, err := d.Sandbox(d.ctx(t, quietLimit), box.ID); err != nil || now.State != "suspended" {
		t.Errorf("the sandbox is %q, %v", now.State, err)
	}
	if _, err := d.Resume(d.ctx(t, bakeLimit), box.ID); err != nil {
		t.Fatal(err)
	}
	wantThere("a", "while it is suspended\n")
	if err := d.Kill(d.ctx(t, quietLimit), box.ID); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); err == nil || !strings.Contains(s.out.String(), "has ended") {
		t.Errorf("forkd sync ended with %v: %s", err, &s.out)
	}
	d.removeBranches(t)
}
