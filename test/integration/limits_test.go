package integration_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/vmtest"
)

// limited forks a sandbox with limits. It skips the test if the host does not support limits. The
// emulated host supports limits.
func (d *daemon) limited(t *testing.T, l client.Limits) client.Sandbox {
	t.Helper()
	f, err := d.Fork(d.ctx(t, startLimit), client.ForkRequest{SnapshotTag: tag, N: 1, Limits: &l})
	if !vmtest.Emulated() && client.IsStatus(err, http.StatusBadRequest) {
		t.Skipf("no limits here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f.Sandboxes[0]
}

// leaf returns the cgroup of a sandbox, or "" if there is none.
func leaf(t *testing.T, id string) (dir string) {
	t.Helper()
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && e.Name() == id {
			dir = path
		}
		if errors.Is(err, fs.ErrNotExist) { // other cgroups may be removed during the search
			err = nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// eat starts a program in the background of a guest. The program allocates mib MiB of memory.
func (d *daemon) eat(t *testing.T, id string, mib int) {
	t.Helper()
	d.sh(t, id, fmt.Sprintf("python3 -c 'import time; x = bytearray(%d << 20); time.sleep(600)' >/dev/null 2>&1 &", mib))
}

// killedByLimit waits until a sandbox was killed because of its memory limit.
func (d *daemon) killedByLimit(t *testing.T, id string, mib int) {
	t.Helper()
	eventually(t, 3*time.Minute, func() error {
		s, err := d.Sandbox(d.ctx(t, quietLimit), id)
		if err == nil && s.State != "exited" {
			err = fmt.Errorf("sandbox %s is %s", id, s.State)
		}
		return err
	})
	s, err := d.Sandbox(d.ctx(t, quietLimit), id)
	want := fmt.Sprintf("killed by its memory limit (%d MiB)", mib)
	if err != nil || s.ExitReason != "memory_limit" || s.ExitDetail != want {
		t.Errorf("sandbox %s ended with %q: %q (%v), want memory_limit: %q", id, s.ExitReason, s.ExitDetail, err, want)
	}
	if dir := leaf(t, id); dir != "" {
		t.Errorf("%s is left", dir)
	}
}

// TestMemoryLimit checks that a sandbox is killed if it exceeds its memory limit, and that its exit
// reason says so. Copies of the sandbox's memory that belong to branches do not count. The
// sandbox's siblings and the daemon are not affected. A new daemon knows the limits.
func TestMemoryLimit(t *testing.T) {
	d := load(t).start(t)
	sibling := d.limited(t, client.Limits{})
	s := d.limited(t, client.Limits{MemoryMiB: 80})
	d.eat(t, s.ID, 20)
	for i := range 3 {
		d.sh(t, s.ID, fmt.Sprintf("head -c 12M /dev/urandom >/dev/shm/x%d", i%2))
		b, err := d.Branch(d.ctx(t, quietLimit), s.ID, client.BranchRequest{Mode: "diff"})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			f, err := d.Fork(d.ctx(t, startLimit), client.ForkRequest{SnapshotTag: b.Tag, N: 1})
			if err != nil {
				t.Fatal(err)
			}
			if got := f.Sandboxes[0].Limits.MemoryMiB; got != 80 {
				t.Errorf("a child of the branch may have %d MiB, want 80", got)
			}
			d.kill(t, f.Sandboxes[0])
		}
	}
	d.alive(t, s.ID)
	d.crash(t)
	d.launch(t)
	const taken = 34 << 20
	d.sh(t, s.ID, "rm /dev/shm/x*") // the guest has little more room than eat needs
	d.eat(t, s.ID, taken>>20)       // the memory written earlier now belongs to the branches
	eventually(t, quietLimit, func() error {
		l, err := d.Limits(d.ctx(t, quietLimit), s.ID)
		if err == nil && l.Usage.OwnMemoryBytes < taken {
			err = fmt.Errorf("of its own: %d bytes", l.Usage.OwnMemoryBytes)
		}
		return err
	})
	use, err := d.SetLimits(d.ctx(t, quietLimit), s.ID, client.Limits{MemoryMiB: 60})
	if err != nil || use.Usage.OwnMemoryBytes < taken || use.Usage.CPUSeconds == 0 {
		t.Errorf("set another limit: %+v, %v", use, err)
	}
	t.Logf("with three branches made, and 34 MiB taken since: %+v", use.Usage)
	if _, err := d.SetLimits(d.ctx(t, quietLimit), s.ID, client.Limits{MemoryMiB: 32}); !client.IsStatus(err,
		http.StatusBadRequest) {
		t.Errorf("a limit below what is used: %v", err)
	}
	d.eat(t, s.ID, 100)
	d.killedByLimit(t, s.ID, 60)
	d.alive(t, sibling.ID)
	d.kill(t, s, sibling)
	d.removeBranches(t)
}

// TestCPULimit checks that a sandbox above its CPU limit is throttled and its sibling is not
// throttled. It also checks that the number of the sandbox's threads is bounded.
func TestCPULimit(t *testing.T) {
	d := load(t).start(t)
	slow, sibling := d.limited(t, client.Limits{CPUs: 0.25, CPUWeight: 50}), d.limited(t, client.Limits{})
	for _, s := range []client.Sandbox{slow, sibling} {
		d.sh(t, s.ID, "(i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done) >/dev/null 2>&1 &")
	}
	eventually(t, 3*time.Minute, func() error {
		l, err := d.Limits(d.ctx(t, quietLimit), slow.ID)
		if err == nil && (l.Usage.ThrottledPeriods == 0 || l.Usage.ThrottledSeconds == 0) {
			err = fmt.Errorf("not held back: %+v", l.Usage)
		}
		return err
	})
	if l, err := d.Limits(d.ctx(t, quietLimit), sibling.ID); err != nil || l.Usage.ThrottledPeriods != 0 ||
		l.Usage.Threads == 0 {
		t.Errorf("the sibling: %+v, %v", l.Usage, err)
	}
	for file, want := range map[string]string{"pids.max": "512", "cpu.max": "25000 100000", "cpu.weight": "50",
		"memory.oom.group": "1"} {
		if p, err := os.ReadFile(filepath.Join(leaf(t, slow.ID), file)); err != nil || strings.TrimSpace(string(p)) != want {
			t.Errorf("%s is %q (%v), want %q", file, p, err, want)
		}
	}
	d.kill(t, slow, sibling)
}

// TestAdmission checks that no more sandboxes start than the host admits. Of two concurrent forks
// that need the last places, at most one succeeds.
func TestAdmission(t *testing.T) {
	d := load(t).start(t, withArgs("--max-sandboxes", "3"))
	fork := func(n int) (client.Forked, error) {
		return d.Fork(d.ctx(t, startLimit), client.ForkRequest{SnapshotTag: tag, N: n})
	}
	refused := func(err error) {
		t.Helper()
		var e *client.Error
		if !errors.As(err, &e) || e.Status != http.StatusTooManyRequests || e.Code != "max_sandboxes" {
			t.Errorf("got %v, want a refusal", err)
		}
	}
	_, err := fork(4)
	refused(err)
	var mu sync.Mutex
	var boxes []client.Sandbox
	var errs []error
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			f, err := fork(2)
			mu.Lock()
			defer mu.Unlock()
			if boxes = append(boxes, f.Sandboxes...); err != nil {
				errs = append(errs, err)
			}
		})
	}
	group.Wait()
	if len(boxes) != 2 || len(errs) != 2 {
		t.Fatalf("%d sandboxes and %d errors of three forks of 2 where 3 are admitted", len(boxes), len(errs))
	}
	refused(errs[0])
	refused(errs[1])
	if _, err := d.Suspend(d.ctx(t, quietLimit), boxes[0].ID); err != nil {
		t.Fatal(err)
	}
	f, err := fork(2)
	if err != nil {
		t.Fatalf("a suspended sandbox keeps its place: %v", err)
	}
	_, err = d.Resume(d.ctx(t, quietLimit), boxes[0].ID)
	refused(err)
	d.crash(t)
	d.launch(t)
	_, err = fork(1)
	refused(err)
	d.kill(t, f.Sandboxes[0])
	if _, err = d.Resume(d.ctx(t, startLimit), boxes[0].ID); err != nil {
		t.Errorf("a deleted sandbox keeps its place: %v", err)
	}
	d.kill(t, append(boxes, f.Sandboxes[1])...)
}
