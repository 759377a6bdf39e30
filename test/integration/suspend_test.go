package integration_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
)

// TestSuspend suspends a sandbox, which frees its VM, and resumes it. While the sandbox is
// suspended, the daemon crashes.
func TestSuspend(t *testing.T) {
	d := loadDistribution(t).start(t)
	box := d.fork(t, 1)[0]
	d.value(t, box.ID, "[kept := 'yes']")
	d.sh(t, box.ID, "echo yes >/root/note")
	if s, err := d.Pause(d.ctx(t, quietLimit), box.ID); err != nil || s.State != "paused" {
		t.Fatalf("%+v, %v", s, err)
	}
	if s, err := d.Resume(d.ctx(t, quietLimit), box.ID); err != nil || s.State != "running" {
		t.Fatalf("%+v, %v", s, err)
	}
	d.alive(t, box.ID)
	for range 2 {
		if s, err := d.Suspend(d.ctx(t, bakeLimit), box.ID); err != nil || s.State != "suspended" || s.PID != 0 {
			t.Fatalf("%+v, %v", s, err)
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", box.PID)); err == nil {
			t.Error("the VMM still runs")
		}
		d.crash(t)
		d.launch(t)
		s, err := d.Resume(d.ctx(t, bakeLimit), box.ID)
		if err != nil || s.ID != box.ID || s.State != "running" {
			t.Fatalf("%+v, %v", s, err)
		}
		box = s
		if got := d.value(t, box.ID, "kept") + d.sh(t, box.ID, "cat /root/note"); got != "'yes'yes\n" {
			t.Errorf("brought back with %q", got)
		}
	}
	d.kill(t, box)
	d.removeBranches(t)
}

// remember gives a sandbox state that a suspension could lose: a variable, a file, and a running
// process.
func (d *daemon) remember(t *testing.T, id, word string) {
	t.Helper()
	d.value(t, id, fmt.Sprintf("[kept := %q]", word))
	d.sh(t, id, fmt.Sprintf("echo %s >/root/note; [ -e /root/pid ] || "+
		"{ (while sleep 0.1; do echo tick >>/root/ticks; done) >/dev/null 2>&1 & echo $! >/root/pid; }", word))
}

// remembers checks that a sandbox has all state that remember gave it, and that its process is
// running.
func (d *daemon) remembers(t *testing.T, id, word string) {
	t.Helper()
	if got := d.value(t, id, "kept") + d.sh(t, id, "cat /root/note"); got != fmt.Sprintf("'%s'%s\n", word, word) {
		t.Errorf("sandbox %s has %q, want %q twice", id, got, word)
	}
	ticks := func() int {
		n, err := strconv.Atoi(strings.TrimSpace(d.sh(t, id, "kill -0 $(cat /root/pid) && wc -l </root/ticks")))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for before := ticks(); ; {
		d.sh(t, id, "sleep 0.3")
		if ticks() > before {
			return
		}
	}
}

// inState waits until a sandbox is in one of the given states, and describes it.
func (d *daemon) inState(t *testing.T, id string, want ...string) client.Sandbox {
	t.Helper()
	var s client.Sandbox
	eventually(t, quietLimit, func() (err error) {
		s, err = d.Sandbox(d.ctx(t, quietLimit), id)
		for _, w := range want {
			if s.State == w {
				return err
			}
		}
		return errors.Join(err, fmt.Errorf("sandbox %s is %s, want one of %v", id, s.State, want))
	})
	return s
}

// idleTimeout is short, so that tests can wait for it. The requests of a test may still last
// longer.
const idleTimeout = 2

// TestIdleSandbox checks that an unused sandbox is suspended, and that a sandbox in use is not
// suspended. It checks that every kind of request resumes a suspended sandbox, even after a crash
// of the daemon.
func TestIdleSandbox(t *testing.T) {
	d := load(t).start(t, withPool(0))
	r, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: tag, N: 1, IdleTimeoutSecs: idleTimeout})
	if err != nil {
		t.Fatal(err)
	}
	box := r.Sandboxes[0]
	d.remember(t, box.ID, "yes")
	d.stayAwake(t, box.ID)
	inRAM := len(tree(t, d.ram))
	file := func() string {
		f, err := d.ReadFile(d.ctx(t, quietLimit), box.ID, "/root/note")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		p, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		return string(p)
	}
	requests := []struct {
		name string
		do   func()
	}{
		{"eval", func() { d.value(t, box.ID, "kept") }},
		{"file", func() {
			if got := file(); got != "yes\n" {
				t.Errorf("file: %q", got)
			}
		}},
		{"branch, after a crash", func() {
			d.crash(t)
			d.launch(t)
			if s := d.inState(t, box.ID, "suspended"); s.PID != 0 {
				t.Errorf("after the crash: %+v", s)
			}
			d.branchOf(t, box.ID, "woken", "live")
			// Until it is deleted, the snapshot may take RAM.
			if err := d.DeleteSnapshot(d.ctx(t, quietLimit), "woken", client.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}},
		{"eval after all", func() { d.value(t, box.ID, "kept") }},
	}
	for _, request := range requests {
		s := d.inState(t, box.ID, "suspended")
		if s.PID != 0 {
			t.Errorf("before the %s: %+v", request.name, s)
		}
		eventually(t, quietLimit, func() error { // the sandbox is listed as suspended before its memory is freed
			if vmms, ram := d.vmms(t), tree(t, d.ram); len(vmms) > 0 || len(ram) > inRAM {
				return fmt.Errorf("before the %s: suspended with VMM %v and in RAM %q", request.name, vmms, ram)
			}
			return nil
		})
		request.do()
		d.remembers(t, box.ID, "yes")
	}
	d.kill(t, box)
	d.removeBranches(t)
}

// stayAwake makes requests that take longer than the idle timeout, and checks that the sandbox is
// not suspended.
func (d *daemon) stayAwake(t *testing.T, id string) {
	t.Helper()
	const long = 2 * idleTimeout
	pid := d.inState(t, id, "running").PID
	ctx := d.ctx(t, quietLimit)
	requests := []func() error{
		func() error {
			_, err := d.Exec(ctx, id, client.ExecRequest{Args: []string{"sleep", fmt.Sprint(long)}, TimeoutSecs: 60})
			return err
		},
		func() error {
			_, err := d.Eval(ctx, id, client.EvalRequest{Code: fmt.Sprintf("import time\ntime.sleep(%d)", long),
				TimeoutSecs: 60})
			return err
		},
		func() error {
			r, w := io.Pipe()
			go func() {
				time.Sleep(long * time.Second)
				w.Close()
			}()
			return d.WriteFile(ctx, id, "/root/slow", r)
		},
	}
	for _, request := range requests {
		done := make(chan error, 1)
		go func() { done <- request() }()
		for running := true; running; {
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
				running = false
			case <-time.After(200 * time.Millisecond):
				if s, err := d.Sandbox(ctx, id); err != nil || s.State != "running" || s.PID != pid {
					t.Fatalf("while it is being used: %+v, %v", s, err)
				}
			}
		}
	}
}

// TestCrashWhileSuspending kills the daemon at several points of a suspension. Afterwards the
// sandbox must either be suspended, or be in the state that it had before: running, or paused by
// its client.
func TestCrashWhileSuspending(t *testing.T) {
	d := load(t).start(t, withPool(0))
	boxes := d.fork(t, 2)
	box, still := boxes[0], boxes[1]
	if _, err := d.Pause(d.ctx(t, quietLimit), still.ID); err != nil {
		t.Fatal(err)
	}
	d.value(t, box.ID, "[data := bytearray(__import__('os').urandom(32 << 20)), len(data)][1]") // takes long to save
	exists := func(pattern ...string) func() bool {
		return func() bool {
			list, err := filepath.Glob(filepath.Join(append([]string{d.state}, pattern...)...))
			return err == nil && len(list) > 0
		}
	}
	for i, point := range []struct {
		name    string
		reached func() bool
	}{
		{"paused", func() bool {
			s, err := d.Sandbox(d.ctx(t, quietLimit), box.ID)
			return err == nil && s.State != "running"
		}},
		{"branching", exists("staging", "*", "vmstate")},
		{"flushing", exists("staging", "*", "manifest.json")},
		{"flushed", exists("snapshots", "suspended-*")},
		{"recorded", exists("sandboxes", box.ID, "suspended.json")},
	} {
		word := fmt.Sprint("round", i)
		d.remember(t, box.ID, word)
		ctx, cancel := context.WithCancel(d.ctx(t, bakeLimit))
		answered := make(chan error, 1)
		go func() {
			_, err := d.Suspend(ctx, box.ID)
			answered <- err
		}()
		for !point.reached() && len(answered) == 0 {
			time.Sleep(time.Millisecond)
		}
		d.crash(t)
		cancel()
		t.Logf("%s: the suspension ended with %v", point.name, <-answered)
		d.launch(t)
		s := d.inState(t, box.ID, "running", "suspended")
		t.Logf("%s: the sandbox is %s", point.name, s.State)
		if s.State == "suspended" {
			if s, err := d.Resume(d.ctx(t, bakeLimit), box.ID); err != nil || s.ID != box.ID {
				t.Fatalf("%s: %+v, %v", point.name, s, err)
			}
		}
		d.remembers(t, box.ID, word)
		if got := d.value(t, box.ID, "len(data)"); got != fmt.Sprint(32<<20) {
			t.Errorf("%s: data: %s", point.name, got)
		}
		d.inState(t, still.ID, "paused")
	}
	if s, err := d.Resume(d.ctx(t, quietLimit), still.ID); err != nil || s.State != "running" {
		t.Errorf("resume what was paused: %+v, %v", s, err)
	}
	d.alive(t, still.ID)
	d.kill(t, boxes...)
	d.removeBranches(t)
}

// TestFailedSuspension checks that a sandbox continues if its state cannot be written to disk. The
// state of its previous suspension is kept.
func TestFailedSuspension(t *testing.T) {
	d := load(t).start(t, withPool(0))
	box := d.fork(t, 1)[0]
	d.remember(t, box.ID, "earlier")
	if _, err := d.Suspend(d.ctx(t, bakeLimit), box.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Resume(d.ctx(t, bakeLimit), box.ID); err != nil {
		t.Fatal(err)
	}
	d.remember(t, box.ID, "later")
	earlier := tree(t, filepath.Join(d.state, "snapshots"))
	var obstacles []string // a flush ends with a rename, which fails if the target is a directory with files
	for i := range 9 {
		dir := filepath.Join(d.state, "snapshots", fmt.Sprintf("suspended-%s-%d", box.ID, i))
		if _, err := os.Stat(dir); err == nil {
			continue
		}
		obstacles = append(obstacles, dir)
		t.Cleanup(func() { os.RemoveAll(dir) }) // other tests use the same directory
		if err := os.MkdirAll(filepath.Join(dir, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		_, err := d.Suspend(d.ctx(t, bakeLimit), box.ID)
		wantError(t, "suspend without a flush", err, http.StatusInternalServerError, "flush", "exists")
		box = d.inState(t, box.ID, "running")
		d.remembers(t, box.ID, "later")
	}
	for _, dir := range obstacles {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, quietLimit, func() error {
		if now := tree(t, filepath.Join(d.state, "snapshots")); strings.Join(now, " ") != strings.Join(earlier, " ") {
			return fmt.Errorf("snapshots are %q, were %q", now, earlier)
		}
		return nil
	})
	d.crash(t)
	if err := syscall.Kill(box.PID, syscall.SIGKILL); err != nil { // like a crash of the host
		t.Fatal(err)
	}
	d.launch(t)
	d.inState(t, box.ID, "suspended")
	if _, err := d.Resume(d.ctx(t, bakeLimit), box.ID); err != nil {
		t.Fatal(err)
	}
	d.remembers(t, box.ID, "earlier")
	d.remember(t, box.ID, "later")
	if err := syscall.Kill(d.inState(t, box.ID, "running").PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.inState(t, box.ID, "exited")
	if s, err := d.Resume(d.ctx(t, bakeLimit), box.ID); err != nil || s.ID != box.ID || s.State != "running" {
		t.Fatalf("resume after the end of its VM: %+v, %v", s, err)
	}
	d.remembers(t, box.ID, "earlier")
	d.kill(t, box)
}
