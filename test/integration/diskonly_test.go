package integration_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// deletedMiB is the amount of data that the tests write and delete again. A disk layer smaller than
// a quarter of this amount does not contain the deleted data.
const deletedMiB = 96

// TestDiskOnlyBranch saves only the disk of a running sandbox, and boots from it. The booted VM has
// all files, even files that were not synced. Processes and memory are lost, and deleted files take
// no space. A parent that boots from the disk can be encrypted.
func TestDiskOnlyBranch(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "fkd")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	secret := filepath.Join(dir, "key")
	writeSecret(t, secret, "k")
	d := load(t).start(t, withArgs("--key-file", secret), withRAM(filepath.Join(dir, "m")))
	defer d.stop(t) // before its files are removed
	box := d.fork(t, 1)[0]
	d.remember(t, box.ID, "disk")
	d.sh(t, box.ID, "echo here >/dev/shm/mark; mkdir /root/tree; for i in $(seq 200); do echo $i >/root/tree/$i; done")
	d.writeAndDelete(t, box.ID)
	s, err := d.Branch(d.ctx(t, bakeLimit), box.ID, client.BranchRequest{Tag: "disk", DiskOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if !s.DiskOnly || s.Mode != "disk" || s.Persist != "done" || s.Status != "ready" || s.SharedBytes != nil {
		t.Errorf("%+v", s)
	}
	d.remembers(t, box.ID, "disk") // the source continues, and can write
	d.carriesNothingDeleted(t, "disk")
	if err := d.VerifySnapshot(d.ctx(t, bakeLimit), "disk"); err != nil {
		t.Error(err)
	}
	_, err = d.Rollback(d.ctx(t, quietLimit), box.ID, "disk")
	wantError(t, "rollback to a disk", err, 409, "has a disk and no memory")

	children := d.forkOf(t, "disk", 2)
	for _, c := range children {
		d.hasBooted(t, c.ID)
		d.sh(t, c.ID, "echo "+c.ID+" >/root/note")
	}
	if got := d.sh(t, children[0].ID, "cat /root/note"); got != children[0].ID+"\n" {
		t.Errorf("siblings share %q", got)
	}
	d.branchOf(t, children[0].ID, "above", "live")
	if got := d.sh(t, d.forkOf(t, "above", 1)[0].ID, "cat /root/note"); got != children[0].ID+"\n" {
		t.Errorf("a branch of a child has %q", got)
	}

	parent, err := d.Snapshot(d.ctx(t, quietLimit), tag)
	if err != nil {
		t.Fatal(err)
	}
	baked, err := d.Bake(d.ctx(t, bakeLimit), client.BakeRequest{Tag: "large", From: "disk",
		MemSizeMiB: parent.MemSizeMiB + 256, VCPUs: 2, Env: map[string]string{"ADDED": "yes"}})
	if err != nil {
		t.Fatal(err)
	}
	if baked.MemSizeMiB != parent.MemSizeMiB+256 || baked.VCPUs != 2 {
		t.Errorf("%+v", baked)
	}
	large := d.forkOf(t, "large", 1)[0]
	d.hasBooted(t, large.ID)
	if got := d.sh(t, large.ID, "grep -c ^processor /proc/cpuinfo; echo $ADDED"); got != "2\nyes\n" {
		t.Errorf("the larger VM says %q", got)
	}
	small := d.sh(t, box.ID, "awk '/MemTotal/ {print int($2/1024)}' /proc/meminfo")
	if got := d.sh(t, large.ID, "[ $(awk '/MemTotal/ {print int($2/1024)}' /proc/meminfo) -gt $(("+
		strings.TrimSpace(small)+" + 128)) ] && echo more"); got != "more\n" {
		t.Errorf("the larger VM has no more memory than %s MiB", strings.TrimSpace(small))
	}

	// Baking from a snapshot with memory also saves data that was never synced, because it freezes
	// the file system in a child of the snapshot.
	d.sh(t, box.ID, "echo unsynced >/root/late")
	d.branchOf(t, box.ID, "whole", "live")
	encrypted, err := d.Bake(d.ctx(t, bakeLimit), client.BakeRequest{Tag: "from-memory", From: "whole", Encrypt: true})
	if err != nil || !encrypted.Encrypted {
		t.Fatal(encrypted, err)
	}
	if got := d.sh(t, d.forkOf(t, "from-memory", 1)[0].ID, "cat /root/late; [ -e /dev/shm/mark ] || echo booted"); got !=
		"unsynced\nbooted\n" {
		t.Errorf("booted from a snapshot with memory: %q", got)
	}
	d.crash(t)
	d.launch(t)
	d.forkOf(t, "disk", 1)
}

// TestDiskOnlyBranchOfABuild forks the result of a build, and boots from the disk of the fork.
// Processes in the booted VM have the user, the directory and the variables of the Dockerfile, like
// processes in the fork.
func TestDiskOnlyBranchOfABuild(t *testing.T) {
	d := load(t).start(t)
	text := "FROM " + tag + "\nRUN useradd -m app && mkdir /srv/app\nENV MODE=built\nUSER app\nWORKDIR /srv/app\n"
	_, log, err := d.buildFile(d.ctx(t, 2*bakeLimit), client.BuildRequest{Tag: "app", Dockerfile: text}, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	var boxes []client.Sandbox
	defer func() {
		d.kill(t, boxes...)
		d.removeBranches(t)
	}()
	const look, want = "echo $MODE; id -un; pwd", "built\napp\n/srv/app\n"
	see := func(from string) string {
		t.Helper()
		box := d.forkOf(t, from, 1)[0]
		boxes = append(boxes, box)
		if got := d.sh(t, box.ID, look); got != want {
			t.Errorf("a fork of %s says %q", from, got)
		}
		return box.ID
	}
	for _, next := range []struct{ from, to string }{{"app", "files"}, {"files", "more-files"}} {
		req := client.BranchRequest{Tag: next.to, DiskOnly: true}
		if _, err := d.Branch(d.ctx(t, bakeLimit), see(next.from), req); err != nil {
			t.Fatal(err)
		}
	}
	see("more-files")
	if _, err := d.Bake(d.ctx(t, bakeLimit), client.BakeRequest{Tag: "larger", From: "app", VCPUs: 2}); err != nil {
		t.Fatal(err)
	}
	see("larger")
}

// hasBooted checks that a sandbox has the files of TestDiskOnlyBranch, but none of its memory.
func (d *daemon) hasBooted(t *testing.T, id string) {
	t.Helper()
	got := d.sh(t, id, "cat /root/note; ls /root/tree | wc -l; [ -e /dev/shm/mark ] || echo fresh; "+
		"pgrep -f '[/]root/ticks' >/dev/null || echo alone; dmesg | grep -c 'recovery' || true")
	if want := "disk\n200\nfresh\nalone\n0\n"; got != want {
		t.Errorf("sandbox %s has %q, want %q", id, got, want)
	}
}

// writeAndDelete writes a large file in a sandbox and deletes it again.
func (d *daemon) writeAndDelete(t *testing.T, id string) {
	t.Helper()
	d.sh(t, id, fmt.Sprintf(`python3 -c "
with open('/root/large', 'wb') as f:
    for _ in range(%d): f.write(b'x' * (1 << 20))" && sync && rm /root/large && sync`, deletedMiB))
}

// carriesNothingDeleted checks that the disk layer of a snapshot is small.
func (d *daemon) carriesNothingDeleted(t *testing.T, name string) {
	t.Helper()
	s, err := d.Snapshot(d.ctx(t, quietLimit), name)
	if err != nil {
		t.Fatal(err)
	}
	if s.DiskPhysical > deletedMiB<<20/4 {
		t.Errorf("the disk layer of %s takes %d MiB", name, s.DiskPhysical>>20)
	}
}

// TestDeletedFilesLeaveTheLayer deletes a file before a live branch. The guest's file system
// discards the blocks of the file without a request by the host.
func TestDeletedFilesLeaveTheLayer(t *testing.T) {
	d := load(t).start(t)
	box := d.fork(t, 1)[0]
	d.writeAndDelete(t, box.ID)
	d.sh(t, box.ID, "sleep 2") // the guest discards blocks in the background, after it has committed the deletion
	d.branchOf(t, box.ID, "after", "live")
	d.carriesNothingDeleted(t, "after")
	d.kill(t, box)
	d.removeBranches(t)
}
