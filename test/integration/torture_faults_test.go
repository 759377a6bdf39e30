package integration_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
)

// cutShort starts a branch of the source, and calls end while the branch is under way. It returns
// the answer to the branch request.
func (x *fire) cutShort(tag string, limit int, end func()) (answer client.Snapshot, err error) {
	req := client.BranchRequest{Mode: x.mode()}
	req.NoWait = req.Mode == "live" && x.rng.IntN(2) == 0
	delay := x.millis(limit)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		answer, err = x.branch(x.source.ID, tag, req)
	}()
	time.Sleep(delay)
	end()
	<-answered
	x.t.Logf("%s branch, wait %t, cut off after %v: %v", req.Mode, !req.NoWait, delay.Round(time.Millisecond), err)
	return answer, err
}

// settleCut checks whether a snapshot was completed, and records the result. An acknowledged
// snapshot must exist.
func (x *fire) settleCut(answer client.Snapshot, err error, p point) {
	x.t.Helper()
	d, missing := x.d.Snapshot(x.d.ctx(x.t, stepLimit), answer.Tag)
	switch {
	case missing == nil && d.Status == "ready":
		if err != nil || answer.Status == "writing" { // in all other cases, the snapshot has been counted
			x.branched(d.Snapshot)
		}
		x.took(d.Snapshot, p)
	case missing == nil && d.Status == "failed" && answer.Status == "writing": // listed as failed until it is removed
		x.report.Count(&x.report.CutOff)
		x.delete(answer.Tag, client.DeleteOptions{})
	case client.IsNotFound(missing) && (err != nil || answer.Status == "writing"):
		x.report.Count(&x.report.CutOff)
	default:
		x.t.Fatalf("branch answered with %+v, %v, then listed as %+v, %v", answer, err, d, missing)
	}
}

// killDaemon kills the daemon in the middle of a branch. Under the next daemon, the source runs,
// has the right content, and can be branched at once. Every snapshot that the next daemon lists has
// the right content.
func (x *fire) killDaemon() {
	p, tag := x.mark(x.source.ID, x.hot()...), x.newTag()
	answer, err := x.cutShort(tag, 300, func() { x.d.crash(x.t) })
	answer.Tag = tag
	x.report.Count(&x.report.DaemonKills)
	x.d.launch(x.t)
	s, lost := x.d.Sandbox(x.d.ctx(x.t, stepLimit), x.source.ID)
	if lost != nil || s.State != "running" || s.PID != x.source.PID || s.SnapshotTag != x.source.SnapshotTag {
		x.t.Fatalf("the source after a crash of the daemon: %+v, %v", s, lost)
	}
	next := x.newTag()
	made, branchErr := x.branch(x.source.ID, next, client.BranchRequest{Mode: x.mode()})
	x.fail(branchErr)
	x.took(made, p)
	x.settleCut(answer, err, p)
	x.verifySource(p)
	x.still(func() {
		x.checkAll()
		x.verifyFiles(next)
		if _, there := x.points[tag]; there {
			x.verifyFiles(tag)
		}
	})
	if _, there := x.points[tag]; there {
		x.delete(tag, client.DeleteOptions{})
	}
	x.latest(next)
	x.d.audit(x.t)
}

// apply takes the tree of files that a child has written, and applies it to the source while both
// write elsewhere. The daemon is killed in the middle. Then the source has either all files of the
// child or its own former files. The next apply gives it all files of the child. Nothing else of
// the source and nothing of the child has changed.
func (x *fire) apply() {
	const tree = "/srv/applied"
	const look = "test ! -e " + tree + " || { cd " + tree + " && sha256sum --quiet -c sums && cat sums && ls; }"
	child := x.fork(x.last)
	p, of := x.mark(x.source.ID), x.mark(child.ID)
	before := x.d.sh(x.t, x.source.ID, look)
	x.d.sh(x.t, child.ID, fmt.Sprintf("mkdir -p %s && cd %s && for i in $(seq 40); do echo %d $i >f$i; done && "+
		"sha256sum f* >sums && sync", tree, tree, of.Mark))
	after := x.d.sh(x.t, child.ID, look)
	req := client.ApplyRequest{From: child.ID, Paths: []string{tree}, Prefer: "from"}
	delay, answered := x.millis(2000), make(chan error)
	go func() {
		_, err := x.d.Apply(x.d.ctx(x.t, stepLimit), x.source.ID, req)
		answered <- err
	}()
	time.Sleep(delay)
	x.d.crash(x.t)
	err := <-answered
	x.report.Count(&x.report.DaemonKills)
	x.d.launch(x.t)
	now := x.d.sh(x.t, x.source.ID, look)
	x.t.Logf("apply, cut off after %v: %v, applied %t", delay.Round(time.Millisecond), err, now == after)
	if now != after && (now != before || err == nil) {
		x.t.Fatalf("an apply that was cut off (%v) left %q, want %q or %q", err, now, before, after)
	}
	if _, err := x.d.Apply(x.d.ctx(x.t, stepLimit), x.source.ID, req); err != nil {
		x.t.Fatal(err)
	}
	for _, id := range []string{x.source.ID, child.ID} {
		if now := x.d.sh(x.t, id, look); now != after {
			x.t.Fatalf("after an apply, sandbox %s has %q, want %q", id, now, after)
		}
	}
	x.verifySource(p)
	x.still(func() { x.fail(x.verifyCopy(child.ID, of)) })
	x.d.kill(x.t, child)
	x.d.audit(x.t)
}

// killVMM kills the source's VMM in the middle of a branch. The source is then reported as exited,
// and no other sandbox is affected.
func (x *fire) killVMM() {
	bystander := x.fork(x.last)
	p, tag := x.mark(x.source.ID, x.hot()...), x.newTag()
	answer, err := x.cutShort(tag, 100, func() {
		if err := syscall.Kill(x.source.PID, syscall.SIGKILL); err != nil {
			x.t.Fatal(err)
		}
	})
	answer.Tag = tag
	x.report.Count(&x.report.Kills)
	if err != nil {
		wantError(x.t, "branch of a VM that was killed", err, 409, x.source.ID, "exited")
	}
	eventually(x.t, quietLimit, func() error {
		s, err := x.d.Sandbox(x.d.ctx(x.t, stepLimit), x.source.ID)
		if err == nil && (s.State != "exited" || s.ExitReason != "internal") {
			err = fmt.Errorf("a sandbox whose VMM was killed: %+v", s)
		}
		return err
	})
	eventually(x.t, quietLimit, func() error { // a branch with NoWait completes in the background
		d, err := x.d.Snapshot(x.d.ctx(x.t, stepLimit), tag)
		if err == nil && d.Status == "writing" {
			return fmt.Errorf("snapshot %s is still being written", tag)
		}
		return nil
	})
	x.settleCut(answer, err, p)
	x.nothingOfTheDead()
	x.fail(x.verifyChildren([]client.Sandbox{bystander}, x.points[x.last]))
	x.replace()
	x.still(x.checkAll)
	if _, there := x.points[tag]; there {
		x.delete(tag, client.DeleteOptions{})
	}
	x.d.audit(x.t)
}

// nothingOfTheDead checks what remains of a source after its VMM was killed: only the latest
// suspended state, if the source had one.
func (x *fire) nothingOfTheDead() {
	x.t.Helper()
	dirs := []string{filepath.Join(x.d.run, "vm", x.source.ID)}
	if x.saved == nil {
		dirs = append(dirs, filepath.Join(x.d.state, "sandboxes", x.source.ID))
	}
	eventually(x.t, quietLimit, func() error {
		for _, dir := range dirs {
			if _, err := os.Stat(dir); err == nil {
				return fmt.Errorf("left behind: %s", dir)
			}
		}
		return nil
	})
	if x.saved == nil {
		return
	}
	s, err := x.d.Resume(x.d.ctx(x.t, stepLimit), x.source.ID)
	if err != nil || s.ID != x.source.ID || s.State != "running" {
		x.t.Fatalf("resume what was killed: %+v, %v", s, err)
	}
	x.source = s
	x.verifySource(*x.saved)
}

// noRoom makes a snapshot that does not fit onto the disk, while guests still have room for their
// writes. The snapshot is usable, and its status says that it is not on disk. The same is true
// under the next daemon. When there is room, the snapshot is written.
func (x *fire) noRoom() {
	filler := filepath.Join(x.d.state, "filler")
	leave := uint64(16+x.rng.IntN(8)) << 20
	x.fillDisk(filler, leave)
	p, tag := x.mark(x.source.ID, x.hot()...), x.newTag()
	branch := func() client.SnapshotDetail {
		s, err := x.branch(x.source.ID, tag, client.BranchRequest{Mode: "full"}) // a full branch needs tens of MiB
		x.fail(err)
		x.took(s, p)
		return x.flushed(tag)
	}
	d := branch()
	for range 3 {
		if d.Persist != "done" {
			break
		}
		// The daemon then also removes other files that were waiting for deletion, so there is more
		// room than this snapshot needs.
		x.delete(tag, client.DeleteOptions{})
		x.fillDisk(filler, leave)
		d = branch()
	}
	if d.Persist != "failed" || d.Status != "ready" || !strings.Contains(d.Warning, "no space left") {
		x.t.Fatalf("snapshot without room: %+v", d)
	}
	x.report.Count(&x.report.FullFS)
	if x.rng.IntN(2) == 0 {
		x.d.crash(x.t)
		x.d.launch(x.t)
	}
	x.still(func() { x.check(tag) })
	x.verifySource(p)
	if err := os.Remove(filler); err != nil {
		x.t.Fatal(err)
	}
	other := x.newTag()
	s, err := x.branch(x.source.ID, other, client.BranchRequest{Mode: "diff"})
	x.fail(err)
	x.took(s, p)
	x.delete(other, client.DeleteOptions{}) // after a deletion the store tries to write again
	eventually(x.t, quietLimit, func() error {
		if d := x.flushed(tag); d.Persist != "done" || d.Warning != "" {
			return fmt.Errorf("snapshot for which there is room: %+v", d)
		}
		return nil
	})
	x.still(func() { x.verifyFiles(tag) })
	x.latest(tag)
}

// flushed waits until the store has tried to write a snapshot to disk.
func (x *fire) flushed(tag string) (d client.SnapshotDetail) {
	x.t.Helper()
	eventually(x.t, quietLimit, func() (err error) {
		d, err = x.d.Snapshot(x.d.ctx(x.t, stepLimit), tag)
		if err == nil && d.Persist == "pending" {
			err = fmt.Errorf("snapshot %s: %+v", tag, d)
		}
		return err
	})
	return d
}

// fillDisk fills the file system of the state directory, except for the given number of bytes,
// which stay free.
func (x *fire) fillDisk(path string, leave uint64) {
	x.t.Helper()
	f, err := os.Create(path)
	if err != nil {
		x.t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(free(x.t, x.d.state)-leave)); err != nil {
		x.t.Fatal(err)
	}
}

// free returns the free bytes of a file system.
func free(t *testing.T, dir string) uint64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return st.Bfree * uint64(st.Bsize)
}

// freeBytes returns the free bytes of the file systems for state and memory. Files that are removed
// but still open take space.
func (x *fire) freeBytes() uint64 {
	x.t.Helper()
	x.d.audit(x.t)
	return free(x.t, x.d.state) + free(x.t, x.d.ram)
}

// slack is the space that logs, digests and other small files may take during a run.
const slack = 2 << 20

// nothingLeft checks that only the base exists, and that the free space is as before.
func (x *fire) nothingLeft(before uint64) {
	x.t.Helper()
	x.d.only(x.t)
	eventually(x.t, quietLimit, func() error {
		if list, err := x.d.Snapshots(x.d.ctx(x.t, stepLimit)); err != nil || len(list) != 1 {
			return fmt.Errorf("snapshots: %+v, %v", list, err)
		}
		if now := x.freeBytes(); now+slack < before {
			return fmt.Errorf("%d bytes are free, %d before", now, before)
		}
		return nil
	})
}
