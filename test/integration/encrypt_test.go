package integration_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
)

// marker is in the memory and on the disk of an encrypted snapshot. The guest puts it together, so no
// request contains it.
const marker = "forkd-top-secret-marker"

// TestEncryptedSnapshots encrypts a branch that has a marker in its memory and on its disk. From
// then on, no file of the daemon contains the marker, even after forks of the branch have used the
// marker, after branches and suspensions of these forks, and after a crash of the daemon. The
// branch can be forked until its key is destroyed. After that, forks are refused.
func TestEncryptedSnapshots(t *testing.T) {
	f := load(t)
	dir, err := os.MkdirTemp("/dev/shm", "fke")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	secret := filepath.Join(dir, "key")
	writeSecret(t, secret, "k")
	d := f.start(t, withArgs("--key-file", secret), withRAM(filepath.Join(dir, "m")), withPool(0))
	defer d.stop(t)                       // before its files are removed
	begin := time.Now().Add(-time.Second) // file times have a lower resolution than time.Now
	d.suspendsInSecret(t, begin)
	box := d.fork(t, 1)[0]
	d.value(t, box.ID, "m = ('forkd-top-' + 'secret-marker') * 1000; len(m)")
	d.sh(t, box.ID, "a=forkd-top-; for i in $(seq 1000); do echo ${a}secret-marker; done >/root/note; sync")
	d.branchOf(t, box.ID, "secret", "live")
	d.persisted(t, "secret", "done")
	d.kill(t, box)
	if found := d.markers(t, begin); len(found) < 2 {
		t.Fatalf("before the encryption, the marker is in %q: want it in memory and on the disk", found)
	}
	family, err := d.EncryptSnapshot(d.ctx(t, bakeLimit), "secret")
	if err != nil || !slices.Equal(family.Tags, []string{"secret"}) || !slices.Equal(family.InClear, []string{tag}) {
		t.Fatalf("%+v: %v", family, err)
	}
	d.hasNoMarker(t, begin)
	for _, crash := range []bool{false, true} {
		children := d.forkOf(t, "secret", 2)
		if crash { // the next daemon has another secret, so it cannot decrypt the snapshot
			d.crash(t)
			writeSecret(t, secret, "x")
			d.launch(t)
			_, fork := d.Fork(d.ctx(t, quietLimit), client.ForkRequest{SnapshotTag: "secret", N: 1})
			wantCode(t, "fork without the key", fork, client.ErrKeyUnavailable)
			remove := d.DeleteSnapshot(d.ctx(t, quietLimit), "secret", client.DeleteOptions{Force: true})
			wantCode(t, "removal of the snapshot of running sandboxes", remove, client.ErrSnapshotInUse)
			writeSecret(t, secret, "k")
		}
		for _, child := range children {
			d.hasSecret(t, child.ID)
		}
		id := children[0].ID
		d.branchesStaySecret(t, begin, id)
		_, branch := d.Branch(d.ctx(t, bakeLimit), id, client.BranchRequest{Tag: "copy", DiskOnly: true})
		_, shred := d.ShredSnapshot(d.ctx(t, quietLimit), "secret")
		_, decrypt := d.DecryptSnapshot(d.ctx(t, quietLimit), "secret")
		_, pack := d.PackSnapshot(d.ctx(t, quietLimit), "secret")
		_, compact := d.CompactSnapshot(d.ctx(t, quietLimit), "secret", "copy")
		for what, c := range map[string]struct {
			err  error
			code client.ErrorCode
		}{"branch of the disk": {branch, client.ErrSnapshotEncryption},
			"pack": {pack, client.ErrSnapshotEncryption}, "compact": {compact, client.ErrSnapshotEncryption},
			"shred": {shred, client.ErrSnapshotInUse}, "decrypt": {decrypt, client.ErrSnapshotInUse}} {
			wantCode(t, what, c.err, c.code)
		}
		d.kill(t, children...)
		d.hasNoMarker(t, begin)
	}
	if err := d.VerifySnapshot(d.ctx(t, bakeLimit), "secret"); err != nil {
		t.Error(err)
	}
	d.hasNoMarker(t, begin)
	if family, err := d.ShredSnapshot(d.ctx(t, quietLimit), "secret"); err != nil || len(family.Tags) != 1 {
		t.Errorf("%+v: %v", family, err)
	}
	var gone *client.Error
	if _, err := d.Fork(d.ctx(t, quietLimit), client.ForkRequest{SnapshotTag: "secret", N: 1}); !errors.As(err, &gone) ||
		gone.Code != string(client.ErrSnapshotNotFound) {
		t.Errorf("fork of a shredded snapshot: %v", err)
	}
	if keys := tree(t, filepath.Join(d.state, "keys")); len(keys) > 0 {
		t.Errorf("keys are left: %q", keys)
	}
	d.kill(t, d.fork(t, 1)...) // the parent still works
}

// suspendsInSecret suspends a sandbox of a snapshot that is not encrypted. Its suspended state is
// encrypted.
func (d *daemon) suspendsInSecret(t *testing.T, begin time.Time) {
	t.Helper()
	box := d.fork(t, 1)[0]
	d.value(t, box.ID, "m = ('forkd-top-' + 'secret-marker') * 1000; len(m)")
	d.sh(t, box.ID, "a=forkd-top-; for i in $(seq 1000); do echo ${a}secret-marker; done >/root/note; sync")
	if found := d.markers(t, begin); len(found) == 0 {
		t.Error("the marker is not on the disk of the running sandbox")
	}
	if _, err := d.SuspendWith(d.ctx(t, bakeLimit), box.ID, client.SuspendRequest{Encrypt: true}); err != nil {
		t.Fatal(err)
	}
	d.hasNoMarker(t, begin)
	if _, err := d.Resume(d.ctx(t, bakeLimit), box.ID); err != nil {
		t.Fatal(err)
	}
	d.hasSecret(t, box.ID)
	d.kill(t, box)
}

// hasSecret checks that a sandbox has the marker in its memory and on its disk.
func (d *daemon) hasSecret(t *testing.T, id string) {
	t.Helper()
	if got := d.value(t, id, "len(m), m[:10], m == ('forkd-top-' + 'secret-marker') * 1000"); got !=
		"(23000, 'forkd-top-', True)" {
		t.Errorf("%s has %s in its memory", id, got)
	}
	if got := d.sh(t, id, "sort -u /root/note"); got != marker+"\n" {
		t.Errorf("%s has %q on its disk", id, got)
	}
}

// branchesStaySecret makes a branch of a sandbox of an encrypted snapshot, and suspends the sandbox. The
// sandbox first writes all of the marker again, so that the new memory layer has it.
func (d *daemon) branchesStaySecret(t *testing.T, begin time.Time, id string) {
	t.Helper()
	d.value(t, id, "m = ('forkd-top-' + 'secret-marker') * 1000; len(m)")
	b, err := d.Branch(d.ctx(t, bakeLimit), id, client.BranchRequest{Tag: "copy"})
	if err != nil || !b.Encrypted {
		t.Errorf("a branch: %+v, %v", b, err)
	}
	d.hasNoMarker(t, begin)
	child := d.forkOf(t, "copy", 1)
	d.hasSecret(t, child[0].ID)
	d.kill(t, child...)
	if err := d.DeleteSnapshot(d.ctx(t, quietLimit), "copy", client.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := d.Suspend(d.ctx(t, bakeLimit), id); err != nil {
		t.Fatal(err)
	}
	d.hasNoMarker(t, begin)
	if _, err := d.Resume(d.ctx(t, bakeLimit), id); err != nil {
		t.Fatal(err)
	}
	d.hasSecret(t, id)
}

func writeSecret(t *testing.T, path, letter string) {
	t.Helper()
	if err := os.WriteFile(path, bytes.Repeat([]byte(letter), 32), 0o600); err != nil {
		t.Fatal(err)
	}
}

func wantCode(t *testing.T, what string, err error, code client.ErrorCode) {
	t.Helper()
	if e := (*client.Error)(nil); !errors.As(err, &e) || e.Code != string(code) {
		t.Errorf("%s: %v, want %s", what, err, code)
	}
}

func (d *daemon) hasNoMarker(t *testing.T, begin time.Time) {
	t.Helper()
	if found := d.markers(t, begin); len(found) > 0 {
		t.Errorf("the marker is in %q", found)
	}
}

// markers returns the files below the daemon's directories that have the marker. It skips files that
// the daemon has not written since the given time.
func (d *daemon) markers(t *testing.T, since time.Time) (list []string) {
	t.Helper()
	for path, words := range d.searchFiles(t, since, marker) {
		if words[marker] && filepath.Base(path) != "forkd-vmm" {
			list = append(list, path)
		}
	}
	slices.Sort(list)
	return list
}
