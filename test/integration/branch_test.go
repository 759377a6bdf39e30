package integration_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/forkd/forkd/client"
)

// branchOf makes a branch, which must succeed. The branch is removed when the test ends.
func (d *daemon) branchOf(t *testing.T, id, name, mode string) client.Snapshot {
	t.Helper()
	s, err := d.Branch(d.ctx(t, bakeLimit), id, client.BranchRequest{Tag: name, Mode: mode})
	if err != nil {
		t.Fatalf("branch %s (%s): %v", name, mode, err)
	}
	if s.Status != "ready" || s.Mode != mode || s.PauseMS == nil || s.ReadyMS == nil || s.DirtyBytes == nil ||
		*s.DirtyBytes == 0 {
		t.Errorf("branch %s: %+v", name, s)
	}
	t.Logf("%s: %s, pause %.1f ms, ready %.1f ms, %d KiB dirty, %d faults", name, mode, *s.PauseMS, *s.ReadyMS,
		*s.DirtyBytes>>10, *s.Faults)
	return s
}

// forkOf starts n sandboxes from a snapshot.
func (d *daemon) forkOf(t *testing.T, name string, n int) []client.Sandbox {
	t.Helper()
	r, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: name, N: n})
	if err != nil {
		t.Fatalf("fork %d of %s: %v", n, name, err)
	}
	return r.Sandboxes
}

// removeBranches removes all snapshots except the parent, even if other snapshots build on them.
func (d *daemon) removeBranches(t *testing.T) {
	t.Helper()
	list, err := d.Snapshots(d.ctx(t, quietLimit))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if s.Tag != tag {
			if err := d.DeleteSnapshot(d.ctx(t, quietLimit), s.Tag, client.DeleteOptions{Force: true}); err != nil {
				t.Errorf("remove %s: %v", s.Tag, err)
			}
		}
	}
}

// counter starts a computation in the background of the interpreter, and a separate process. Both
// count upwards.
const counter = `
import threading, time
steps = []
def work():
    while True:
        steps.append(len(steps))
        time.sleep(0.02)
threading.Thread(target=work, daemon=True).start()
`

// TestBranchMidComputation branches a sandbox during a computation. Children inherit memory, files
// and processes, and then continue independently. The source is not affected.
func TestBranchMidComputation(t *testing.T) {
	d := load(t).start(t)
	source := d.fork(t, 1)[0]
	if _, err := d.Eval(d.ctx(t, quietLimit), source.ID, client.EvalRequest{Code: counter}); err != nil {
		t.Fatal(err)
	}
	d.sh(t, source.ID, "echo plan >/root/note; (while sleep 0.1; do echo tick >>/root/ticks; done) >/dev/null 2>&1 & echo $! >/root/pid")
	for i, mode := range []string{"live", "diff", "full"} {
		at, _ := strconv.Atoi(d.value(t, source.ID, "len(steps)"))
		d.branchOf(t, source.ID, mode, mode)
		d.sh(t, source.ID, "echo later >/root/note")
		for path, child := range d.forkOf(t, mode, 2) {
			if n, _ := strconv.Atoi(d.value(t, child.ID, "len(steps)")); n < at {
				t.Errorf("%s: a child is at step %d, the source was at %d", mode, n, at)
			}
			if d.value(t, child.ID, "steps[:-1] == list(range(len(steps) - 1))") != "True" {
				t.Errorf("%s: the list of a child is torn", mode)
			}
			if got := d.sh(t, child.ID, "cat /root/note; kill -0 $(cat /root/pid) && echo alive"); got != "plan\nalive\n" {
				t.Errorf("%s: a child has %q", mode, got)
			}
			d.sh(t, child.ID, fmt.Sprintf("echo path %d >/root/note", path))
			if got := d.sh(t, child.ID, "cat /root/note"); got != fmt.Sprintf("path %d\n", path) {
				t.Errorf("%s: child %d took %q", mode, path, got)
			}
			d.kill(t, child)
		}
		if got := d.sh(t, source.ID, "cat /root/note; kill -0 $(cat /root/pid) && echo alive"); got != "later\nalive\n" {
			t.Errorf("the source after branch %d: %q", i, got)
		}
		d.sh(t, source.ID, "echo plan >/root/note")
	}
	if n, err := d.Sandbox(d.ctx(t, quietLimit), source.ID); err != nil || n.BranchCount != 3 || !n.HasBranched {
		t.Errorf("%+v, %v", n, err)
	}
	_, err := d.Branch(d.ctx(t, quietLimit), source.ID, client.BranchRequest{Tag: "live"})
	wantError(t, "a tag that is taken", err, 409, "live", "exists")
	err = d.DeleteSnapshot(d.ctx(t, quietLimit), tag, client.DeleteOptions{})
	wantError(t, "deleting what others build on", err, 409, "live", "diff", "full")
	d.kill(t, source)
	d.removeBranches(t)
}

// TestBranchChain forks and branches until the chain has six links, kills the daemon half-way, and
// compares every link with its expected state.
func TestBranchChain(t *testing.T) {
	const depth = 6 // live three times, diff twice, full once; the torture has deeper chains
	d := load(t).start(t)
	box := d.fork(t, 1)[0]
	d.value(t, box.ID, "[links := []]")
	modes := []string{"live", "diff", "live", "full"}
	for i := range depth {
		d.value(t, box.ID, fmt.Sprintf("[links.append((%d, bytes([%d]) * 300000)), len(links)]", i, i))
		d.sh(t, box.ID, fmt.Sprintf("echo %d >>/root/links; head -c 200000 /dev/zero | tr '\\0' '\\%03o' >/root/blob%d", i,
			i+1, i))
		d.branchOf(t, box.ID, fmt.Sprintf("link-%d", i), modes[i%len(modes)])
		d.kill(t, box)
		if i == depth/2 {
			d.crash(t)
			d.launch(t)
		}
		box = d.forkOf(t, fmt.Sprintf("link-%d", i), 1)[0]
	}
	d.kill(t, box)
	for i := range depth {
		s := d.forkOf(t, fmt.Sprintf("link-%d", i), 1)[0]
		if got := d.value(t, s.ID,
			"all(a == i and b == bytes([i]) * 300000 for i, (a, b) in enumerate(links)) and len(links)"); got != fmt.Sprint(i+1) {
			t.Errorf("link %d: memory %s", i, got)
		}
		want := ""
		for j := range i + 1 {
			want += fmt.Sprintln(j)
		}
		if got := d.sh(t, s.ID, "cat /root/links"); got != want {
			t.Errorf("link %d: file %q", i, got)
		}
		check := fmt.Sprintf("sync; echo 3 >/proc/sys/vm/drop_caches; for i in $(seq 0 %d); do tr -d \"\\\\$(printf %%03o $((i+1)))\" </root/blob$i | wc -c; wc -c </root/blob$i; done | sort -u", i)
		if got := strings.Fields(d.sh(t, s.ID, check)); len(got) != 2 || got[0] != "0" || got[1] != "200000" {
			t.Errorf("link %d: blobs read back from the disk: %v", i, got)
		}
		d.kill(t, s)
	}
	info, err := d.Snapshot(d.ctx(t, quietLimit), fmt.Sprintf("link-%d", depth-1))
	if err != nil || info.ChainDepth != depth || info.DiskLayers != depth+1 {
		t.Errorf("%+v, %v", info, err)
	}
	if _, err := d.CompactSnapshot(d.ctx(t, bakeLimit), info.Tag, "flat"); err != nil {
		t.Fatal(err)
	}
	for i := range depth {
		if err := d.DeleteSnapshot(d.ctx(t, quietLimit), fmt.Sprintf("link-%d", i),
			client.DeleteOptions{Force: true}); err != nil {
			t.Error(err)
		}
	}
	s := d.forkOf(t, "flat", 1)[0]
	if got := d.value(t, s.ID, "len(links)"); got != fmt.Sprint(depth) {
		t.Errorf("compacted: %s", got)
	}
	d.kill(t, s)
	d.removeBranches(t)
}

// TestRollback checks that a rollback restores memory, files and a process, in the same VMM
// process.
func TestRollback(t *testing.T) {
	d := load(t).start(t)
	box := d.fork(t, 1)[0]
	d.value(t, box.ID, "[state := 'before']")
	d.sh(t, box.ID, "echo before >/root/note; sleep 1000 >/dev/null 2>&1 & echo $! >/root/pid")
	d.branchOf(t, box.ID, "point", "live")
	for range 2 {
		d.value(t, box.ID, "[state := 'after']")
		d.sh(t, box.ID, "rm /root/note; kill $(cat /root/pid)")
		r, err := d.Rollback(d.ctx(t, bakeLimit), box.ID, "point")
		if err != nil {
			t.Fatal(err)
		}
		if r.ID != box.ID || r.PID != box.PID || r.SnapshotTag != "point" || r.State != "running" {
			t.Errorf("%+v", r)
		}
		if got := d.value(t, box.ID, "state"); got != "'before'" {
			t.Errorf("memory: %s", got)
		}
		if got := d.sh(t, box.ID, "cat /root/note; kill -0 $(cat /root/pid) && echo alive"); got != "before\nalive\n" {
			t.Errorf("files and process: %q", got)
		}
	}
	if _, err := d.Rollback(d.ctx(t, bakeLimit), box.ID, tag); err != nil { // back to an earlier snapshot
		t.Fatal(err)
	}
	d.alive(t, box.ID)
	d.branchOf(t, box.ID, "fresh", "live")
	if _, err := d.Rollback(d.ctx(t, bakeLimit), box.ID, "point"); err != nil { // forward to the later snapshot
		t.Fatal(err)
	}
	if got := d.value(t, box.ID, "state"); got != "'before'" {
		t.Errorf("memory, forward again: %s", got)
	}
	other := d.fork(t, 1)[0]
	d.value(t, other.ID, "[state := 'other']")
	d.branchOf(t, other.ID, "elsewhere", "live")
	if _, err := d.Rollback(d.ctx(t, bakeLimit), box.ID, "elsewhere"); err != nil { // to the branch of a sibling
		t.Fatal(err)
	}
	if got := d.value(t, box.ID, "state"); got != "'other'" {
		t.Errorf("memory of a sibling: %s", got)
	}
	d.kill(t, box, other)
	d.removeBranches(t)
}

// TestPromote makes a sandbox continue as one of its copies, and then rolls it back to its own
// state.
func TestPromote(t *testing.T) {
	d := load(t).start(t)
	box := d.fork(t, 1)[0]
	d.value(t, box.ID, "[state := 'before']")
	d.branchOf(t, box.ID, "before", "live")
	tries, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SourceID: box.ID, N: 2})
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range tries.Sandboxes {
		d.value(t, s.ID, fmt.Sprintf("[state := %d]", i))
		d.sh(t, s.ID, fmt.Sprintf("echo %d >/root/note; hostname >/root/name; sleep 1000 >/dev/null 2>&1 & echo $! >/root/pid", i))
	}
	name := d.sh(t, box.ID, "hostname")
	r, err := d.Promote(d.ctx(t, bakeLimit), box.ID, client.PromoteRequest{From: tries.Sandboxes[1].ID})
	if err != nil {
		t.Fatal(err)
	}
	if r.ID != box.ID || r.PID != box.PID || r.State != "running" {
		t.Errorf("%+v", r)
	}
	d.kill(t, tries.Sandboxes...)
	if got := d.value(t, box.ID, "state"); got != "1" {
		t.Errorf("memory: %s", got)
	}
	got := d.sh(t, box.ID, "cat /root/note; kill -0 $(cat /root/pid) && echo alive; hostname")
	if got != "1\nalive\n"+name {
		t.Errorf("files, process and name: %q, want the name %q", got, name)
	}
	if _, err := d.Rollback(d.ctx(t, bakeLimit), box.ID, "before"); err != nil {
		t.Fatal(err)
	}
	if got := d.value(t, box.ID, "state"); got != "'before'" {
		t.Errorf("the way back: %s", got)
	}
	d.kill(t, box)
	d.removeBranches(t)
}

// TestForkFromSandbox branches a sandbox and forks children of the branch in one call. The branch
// is deleted when the last child is deleted.
func TestForkFromSandbox(t *testing.T) {
	d := load(t).start(t)
	box := d.fork(t, 1)[0]
	d.value(t, box.ID, "[mark := 17]")
	r, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SourceID: box.ID, N: 3})
	if err != nil || len(r.Sandboxes) != 3 || r.PauseMS <= 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, s := range r.Sandboxes {
		if got := d.value(t, s.ID, "mark"); got != "17" {
			t.Errorf("child: %s", got)
		}
	}
	d.kill(t, r.Sandboxes...)
	eventually(t, quietLimit, func() error {
		list, err := d.Snapshots(d.ctx(t, quietLimit))
		if err == nil && len(list) != 1 {
			err = fmt.Errorf("%d snapshots", len(list))
		}
		return err
	})
	d.alive(t, box.ID)
	d.kill(t, box)
}

// TestBranchWithoutRAM checks that a branch fails if there is no room for it, and that its source
// continues and can be branched later.
func TestBranchWithoutRAM(t *testing.T) {
	ram := t.TempDir()
	if err := syscall.Mount("forkd-test", ram, "tmpfs", 0, "size=300m,mode=0700"); err != nil {
		t.Skipf("mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(ram, 0); err != nil {
			t.Error(err)
		}
	})
	d := load(t).start(t, withRAM(ram))
	box := d.fork(t, 1)[0]
	d.value(t, box.ID, "[data := bytearray(b'x' * (16 << 20)), len(data)][1]")
	filler := filepath.Join(ram, "filler")
	fill(t, ram, filler, 1<<20)
	for _, mode := range []string{"live", "diff", "full"} {
		_, err := d.Branch(d.ctx(t, bakeLimit), box.ID, client.BranchRequest{Tag: "b", Mode: mode})
		wantError(t, mode+" without room", err, 507, "no space left")
		d.alive(t, box.ID)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	d.value(t, box.ID, "[data.extend(b'y'), len(data)][1]")
	d.branchOf(t, box.ID, "b", "live")
	for _, s := range append(d.forkOf(t, "b", 1), box) {
		if got := d.value(t, s.ID, "data == b'x' * (16 << 20) + b'y'"); got != "True" {
			t.Errorf("sandbox %s after the failures: %s", s.ID, got)
		}
		d.kill(t, s)
	}
	d.removeBranches(t)
}

// fill fills a file system, except for the given number of bytes, which stay free.
func fill(t *testing.T, dir, path string, leave int64) {
	t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, int64(st.Bfree)*st.Bsize-leave); err != nil {
		t.Fatal(err)
	}
}

// TestBranchCutShort kills the daemon, and then the VMM, while a live branch is being copied.
func TestBranchCutShort(t *testing.T) {
	d := load(t).start(t)
	box, other := d.fork(t, 1)[0], d.fork(t, 1)[0]
	d.value(t, box.ID, "[data := bytearray(b'x' * (24 << 20)), len(data)][1]")
	noWait := client.BranchRequest{Tag: "cut", Mode: "live", NoWait: true}
	s, err := d.Branch(d.ctx(t, bakeLimit), box.ID, noWait)
	if err != nil || s.Status != "writing" {
		t.Fatalf("%+v, %v", s, err)
	}
	d.crash(t)
	d.launch(t)
	d.alive(t, box.ID)
	if _, err := d.Snapshot(d.ctx(t, quietLimit), "cut"); err == nil {
		t.Log("the branch was complete before the daemon died")
		d.removeBranches(t)
	}
	d.value(t, box.ID, "[data.extend(b'y'), len(data)][1]")
	// The VMM may still be copying for the killed daemon. While it is copying, it refuses another branch.
	eventually(t, quietLimit, func() error {
		_, err := d.Branch(d.ctx(t, bakeLimit), box.ID, client.BranchRequest{Tag: "next"})
		return err
	})
	child := d.forkOf(t, "next", 1)[0]
	for _, s := range []client.Sandbox{box, child} {
		if got := d.value(t, s.ID, "data == b'x' * (24 << 20) + b'y'"); got != "True" {
			t.Errorf("sandbox %s after the crash: %s", s.ID, got)
		}
	}
	if s, err := d.Branch(d.ctx(t, bakeLimit), box.ID, noWait); err != nil || s.Status != "writing" {
		t.Fatalf("%+v, %v", s, err)
	}
	if err := syscall.Kill(box.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, quietLimit, func() error {
		s, err := d.Sandbox(d.ctx(t, quietLimit), box.ID)
		if err == nil && s.State != "exited" {
			err = fmt.Errorf("state %s", s.State)
		}
		return err
	})
	d.alive(t, other.ID)
	d.alive(t, child.ID)
	_, err = d.Branch(d.ctx(t, quietLimit), box.ID, client.BranchRequest{})
	wantError(t, "branch of an exited sandbox", err, 409, "exited")
	d.kill(t, box, other, child)
	d.removeBranches(t)
}

// TestRacingBranches makes several branches of one sandbox concurrently, while other calls fork
// from it.
func TestRacingBranches(t *testing.T) {
	d := load(t).start(t)
	box := d.fork(t, 1)[0]
	d.value(t, box.ID, "[data := bytearray(b'x' * (8 << 20)), len(data)][1]")
	ctx, cancel := context.WithCancel(d.ctx(t, bakeLimit))
	defer cancel()
	errs := make(chan error)
	for i := range 3 {
		go func() {
			_, err := d.Branch(ctx, box.ID, client.BranchRequest{Tag: fmt.Sprintf("race-%d", i)})
			errs <- err
		}()
	}
	go func() {
		r, err := d.Fork(ctx, client.ForkRequest{SourceID: box.ID, N: 1})
		if err == nil {
			err = d.Kill(ctx, r.Sandboxes[0].ID)
		}
		errs <- err
	}()
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for i := range 3 {
		s := d.forkOf(t, fmt.Sprintf("race-%d", i), 1)[0]
		if got := d.value(t, s.ID, "data == b'x' * (8 << 20)"); got != "True" {
			t.Errorf("branch %d: %s", i, got)
		}
		d.kill(t, s)
	}
	d.kill(t, box)
	d.removeBranches(t)
}
