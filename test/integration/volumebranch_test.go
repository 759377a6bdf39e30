package integration_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
)

// writeHard is a script that overwrites 64 blocks on the volume one after another, each with a sync. In
// the guest's memory (/run is a tmpfs), it keeps the expected content of each block, and the number of
// the last block that was written. So memory and volume fit together only if they belong to the
// same instant. The block after the last one may be half-written.
const writeHard = `mkdir -p /run/w /data/b && cat >/run/w/run <<'END'
n=$(cat /run/w/n)
while :; do
	n=$((n+1)); k=$((n%64))
	yes "block $n" | head -c 16384 >/run/w/new
	dd if=/run/w/new of=/data/b/block.$k bs=16k conv=notrunc,fsync 2>/dev/null
	mv /run/w/new /run/w/block.$k
	echo $n >/run/w/n.new && mv /run/w/n.new /run/w/n
done
END
echo 0 >/run/w/n
setsid sh /run/w/run >/dev/null 2>&1 & echo $! >/run/w/pid`

// writeOn starts the writer again after checkHard.
const writeOn = `setsid sh /run/w/run >/dev/null 2>&1 & echo $! >/run/w/pid`

// checkHard ends the writer. It drops all clean pages, so that the volume is read from its disk, and then
// compares the volume with the memory. It prints the number of the last block.
const checkHard = `kill -9 $(cat /run/w/pid); while kill -0 $(cat /run/w/pid) 2>/dev/null; do sleep 0.02; done
sync; echo 3 >/proc/sys/vm/drop_caches
n=$(cat /run/w/n); next=$(((n+1)%64))
(cd /run/w && sha256sum block.*) >/run/sums
cd /data/b && sha256sum -c --quiet /run/sums 2>/dev/null | grep -v "^block.$next: "
grep -q ' /data .* ro,' /proc/mounts && echo "the volume is read-only after an error"
echo $n`

// blocks returns the number of the last block that the writer in a sandbox has written.
func (d *daemon) blocks(t *testing.T, id string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(d.sh(t, id, "cat /run/w/n"), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// fits checks that memory and volume of a sandbox belong to the same instant. It returns the number
// of the last block.
func (d *daemon) fits(t *testing.T, what, id string) (n int) {
	t.Helper()
	got := strings.TrimSpace(d.sh(t, id, checkHard))
	if _, err := fmt.Sscan(got, &n); err != nil || fmt.Sprint(n) != got {
		t.Errorf("%s: %s", what, got)
	}
	return n
}

// awaitBlocks waits until the writer has written n further blocks.
func (d *daemon) awaitBlocks(t *testing.T, id string, n int) {
	t.Helper()
	want := d.blocks(t, id) + n
	eventually(t, quietLimit, func() error {
		if got := d.blocks(t, id); got < want {
			return fmt.Errorf("the writer has written %d blocks, want %d", got, want)
		}
		return nil
	})
}

func (d *daemon) forkTag(t *testing.T, tag string) client.Sandbox {
	t.Helper()
	r, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: tag, N: 1})
	if err != nil {
		t.Fatalf("fork %s: %v", tag, err)
	}
	return r.Sandboxes[0]
}

func (d *daemon) removeTag(t *testing.T, tag string) {
	t.Helper()
	if err := d.DeleteSnapshot(d.ctx(t, quietLimit), tag, client.DeleteOptions{}); err != nil {
		t.Errorf("delete %s: %v", tag, err)
	}
}

// branchedWithVolume branches a sandbox while it writes to its volume. In the children and after a
// rollback, volume and memory belong to the same instant.
func (d *daemon) branchedWithVolume(t *testing.T) {
	box := d.forkWith(t, 1, "")[0]
	d.sh(t, box.ID, writeHard)
	d.awaitBlocks(t, box.ID, 66) // all blocks exist
	modes := []string{"full", "live", "diff"}
	at := map[string]int{}
	for _, mode := range modes {
		if _, err := d.Branch(d.ctx(t, bakeLimit), box.ID, client.BranchRequest{Tag: "v-" + mode, Mode: mode}); err != nil {
			t.Fatalf("%s branch: %v", mode, err)
		}
		at[mode] = d.blocks(t, box.ID)
		d.awaitBlocks(t, box.ID, 3)
	}
	d.wantWriter(t, "branches", box.ID)
	for _, mode := range modes {
		child := d.forkTag(t, "v-"+mode)
		if len(child.Volumes) != 1 || child.Volumes[0].Mode != "copy" || child.Volumes[0].Path != "/data" {
			t.Errorf("a child has %+v", child.Volumes)
		}
		d.fits(t, "child of the "+mode+" branch", child.ID)
		d.sh(t, child.ID, "rm -r /data/b && sync") // only in the copy
		d.kill(t, child)
	}
	d.fits(t, "after branches", box.ID)
	d.sh(t, box.ID, "rm -r /data/b && echo later >/data/later && sync")
	for _, mode := range []string{"diff", "full"} {
		if _, err := d.Rollback(d.ctx(t, bakeLimit), box.ID, "v-"+mode); err != nil {
			t.Fatalf("rollback to the %s branch: %v", mode, err)
		}
		d.sh(t, box.ID, "test ! -e /data/later")
		d.awaitBlocks(t, box.ID, 1) // the writer of the snapshot continues
		if n := d.fits(t, "rollback to the "+mode+" branch", box.ID); n < 66 {
			t.Errorf("rollback to the %s branch: %d blocks", mode, n)
		}
	}
	d.wantWriter(t, "rollbacks", box.ID)

	// A rollback to a snapshot without the volume keeps the present content.
	d.sh(t, box.ID, "echo present >/data/present")
	if _, err := d.Rollback(d.ctx(t, bakeLimit), box.ID, "slots"); err != nil {
		t.Fatalf("rollback to the parent: %v", err)
	}
	if got := d.sh(t, box.ID, "cat /data/present; ls /run/w 2>/dev/null || true"); got != "present\n" {
		t.Errorf("rollback to the parent: %q", got)
	}
	// The volume becomes the copy of a promoted sandbox.
	child := d.forkTag(t, "v-live")
	d.sh(t, child.ID, "echo promoted >/data/promoted")
	if _, err := d.Promote(d.ctx(t, bakeLimit), box.ID, client.PromoteRequest{From: child.ID}); err != nil {
		t.Fatalf("promote: %v", err)
	}
	d.sh(t, box.ID, "test ! -e /data/present && cat /data/promoted")
	d.fits(t, "promoted", box.ID)
	d.kill(t, child, box)
	next := d.forkWith(t, 1, "")[0]
	if got := d.sh(t, next.ID, "cat /data/promoted"); got != "promoted\n" {
		t.Errorf("the volume afterwards has %q", got)
	}
	d.sh(t, next.ID, "rm -r /data/*")
	d.kill(t, next)
	for _, mode := range modes {
		d.removeTag(t, "v-"+mode)
	}
}

// suspendedWithVolume suspends and resumes a sandbox that writes to its volume. The sandbox stays
// the volume's writer, even if the daemon is killed in between.
func (d *daemon) suspendedWithVolume(t *testing.T) {
	box := d.forkWith(t, 1, "")[0]
	d.sh(t, box.ID, writeHard)
	d.awaitBlocks(t, box.ID, 10)
	if _, err := d.Suspend(d.ctx(t, bakeLimit), box.ID); err != nil {
		t.Fatalf("suspend: %v", err)
	}
	d.wantWriter(t, "suspension", box.ID)
	d.crash(t)
	d.launch(t)
	d.wantWriter(t, "suspension and a killed daemon", box.ID)
	if _, err := d.Resume(d.ctx(t, bakeLimit), box.ID); err != nil {
		t.Fatalf("resume: %v", err)
	}
	d.awaitBlocks(t, box.ID, 2)
	d.fits(t, "resumed", box.ID)
	d.sh(t, box.ID, "rm -r /data/*")
	d.kill(t, box)
	d.wantWriter(t, "deletion", "")
}

// killedWhileBranched kills the daemon while it branches a sandbox that writes to its volume. Afterwards
// the sandbox continues, and a branch that exists is whole.
func (d *daemon) killedWhileBranched(t *testing.T) {
	box := d.forkWith(t, 1, "")[0]
	d.sh(t, box.ID, writeHard)
	d.awaitBlocks(t, box.ID, 66)
	for i := range 4 {
		delay, tag := time.Duration(i*i)*150*time.Millisecond, fmt.Sprintf("cut-%d", i)
		ctx, done := d.ctx(t, bakeLimit), make(chan struct{})
		go func() {
			defer close(done)
			_, _ = d.Branch(ctx, box.ID, client.BranchRequest{Tag: tag, Mode: "diff"}) // the daemon is killed meanwhile
		}()
		time.Sleep(delay)
		d.crash(t)
		<-done
		d.launch(t)
		what := fmt.Sprintf("killed %v after the request for a branch", delay)
		d.wantWriter(t, what, box.ID)
		d.awaitBlocks(t, box.ID, 2)
		d.fits(t, what, box.ID)
		d.sh(t, box.ID, writeOn)
		if _, err := d.Snapshot(d.ctx(t, quietLimit), tag); err == nil {
			child := d.forkTag(t, tag)
			d.fits(t, "child of a branch: "+what, child.ID)
			d.kill(t, child)
			d.removeTag(t, tag)
		}
		if _, err := d.Branch(d.ctx(t, bakeLimit), box.ID, client.BranchRequest{Tag: "whole"}); err != nil {
			t.Fatalf("%s: the next branch: %v", what, err)
		}
		child := d.forkTag(t, "whole")
		d.fits(t, "child of the next branch: "+what, child.ID)
		d.kill(t, child)
		d.removeTag(t, "whole")
	}
	d.sh(t, box.ID, "kill -9 $(cat /run/w/pid); rm -r /data/*")
	d.kill(t, box)
}
