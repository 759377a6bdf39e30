package integration_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
)

// smallState makes a state directory with the parent's snapshot. The directory is on a separate
// small file system, which a test can fill.
func (f *fixture) smallState(t *testing.T) string {
	t.Helper()
	state := f.newState(t)
	mount(t, state, "size=600m")
	fillState(t, f.state, state, copySparse)
	return state
}

// copySparse copies a file and omits zeros.
func copySparse(from, to string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	st, err := r.Stat()
	if err != nil {
		return err
	}
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer w.Close()
	zeros, buf := make([]byte, 64<<10), make([]byte, 64<<10)
	for off := int64(0); off < st.Size(); off += int64(len(buf)) {
		n, err := r.ReadAt(buf, off)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if bytes.Equal(buf[:n], zeros[:n]) {
			continue
		}
		if _, err := w.WriteAt(buf[:n], off); err != nil {
			return err
		}
	}
	return w.Truncate(st.Size())
}

// persisted waits until a snapshot has the given persistence status, and describes it.
func (d *daemon) persisted(t *testing.T, name, status string) client.SnapshotDetail {
	t.Helper()
	var s client.SnapshotDetail
	eventually(t, quietLimit, func() (err error) {
		s, err = d.Snapshot(d.ctx(t, quietLimit), name)
		if err == nil && s.Persist != status {
			err = fmt.Errorf("%s: persist_status %q (%s), want %q", name, s.Persist, s.Warning, status)
		}
		return err
	})
	return s
}

// TestFullWhileFlushing makes a branch that does not fit onto the disk. The branch must be usable
// and have the right status, even after a crash of the daemon. When there is room, the branch is
// written to disk.
func TestFullWhileFlushing(t *testing.T) {
	f := load(t)
	state := f.smallState(t)
	d := f.start(t, withState(state), withPool(0))
	box := d.fork(t, 1)[0]
	d.value(t, box.ID, "[data := bytearray(__import__('os').urandom(16 << 20)), len(data)][1]")
	sum := d.value(t, box.ID, "hash(bytes(data))")
	child := func(name string) {
		t.Helper()
		for _, s := range d.forkOf(t, name, 1) {
			if got := d.value(t, s.ID, "hash(bytes(data))"); got != sum {
				t.Errorf("child of %s: %s, want %s", name, got, sum)
			}
			d.kill(t, s)
		}
	}
	filler := filepath.Join(state, "filler")
	fill(t, state, filler, 4<<20) // leaves room for small files such as records, maps, and the guest's private disk
	for _, name := range []string{"b", "c"} {
		d.value(t, box.ID, "len(data)") // makes sure that the guest has written memory since the previous branch
		d.branchOf(t, box.ID, name, "live")
		s := d.persisted(t, name, "failed")
		if s.Status != "ready" || !strings.Contains(s.Warning, "no space left") ||
			!strings.Contains(s.Warning, `"`+name+`"`) {
			t.Errorf("not on disk: %+v", s)
		}
	}
	stdout, stderr := d.cli(t, 0, "snapshot-info", "b")
	if !strings.Contains(stdout, "failed") || !strings.Contains(stderr, "no space left") {
		t.Errorf("snapshot-info: %s%s", stdout, stderr)
	}
	child("b")
	_, err := d.Suspend(d.ctx(t, bakeLimit), box.ID)
	wantError(t, "suspend without room", err, http.StatusInsufficientStorage, "no space left", box.ID)
	d.inState(t, box.ID, "running")

	d.crash(t)
	d.launch(t)
	d.persisted(t, "b", "failed")
	child("b")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	// Deleting a snapshot makes the store try again to write b to disk.
	if err := d.DeleteSnapshot(d.ctx(t, quietLimit), "c", client.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if s := d.persisted(t, "b", "done"); s.Warning != "" || s.Dir != filepath.Join(state, "snapshots", "b") {
		t.Errorf("on disk: %+v", s)
	}
	d.kill(t, box)
	d.loseRAM(t)
	child("b")
	d.removeBranches(t)
}

// loseRAM empties the RAM directory and restarts the daemon, like a reboot of the host.
func (d *daemon) loseRAM(t *testing.T) {
	t.Helper()
	d.crash(t)
	entries, err := os.ReadDir(d.ram)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(d.ram, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	d.launch(t)
}

// TestLostBeforeFlushed checks a branch that was only in RAM when the host crashed. The next daemon
// must list it as failed.
func TestLostBeforeFlushed(t *testing.T) {
	f := load(t)
	state := f.smallState(t)
	d := f.start(t, withState(state), withPool(0))
	box := d.fork(t, 1)[0]
	d.value(t, box.ID, "[data := bytearray(__import__('os').urandom(16 << 20)), len(data)][1]")
	filler := filepath.Join(state, "filler")
	fill(t, state, filler, 4<<20)
	d.branchOf(t, box.ID, "b", "live")
	d.persisted(t, "b", "failed")
	d.kill(t, box)
	d.loseRAM(t)
	s := d.persisted(t, "b", "failed")
	if s.Status != "failed" || s.Bootable || !strings.Contains(s.Warning, "lost") {
		t.Errorf("lost: %+v", s)
	}
	_, err := d.Fork(d.ctx(t, quietLimit), client.ForkRequest{SnapshotTag: "b", N: 1})
	wantError(t, "fork of what is lost", err, http.StatusConflict, `"b"`, "lost")
	d.removeBranches(t)
}

// TestBranchFallsBack checks that a live branch becomes a diff branch if the directory for memory
// layers is not on tmpfs. The answer must say so.
func TestBranchFallsBack(t *testing.T) {
	d := load(t).start(t, withRAM(onDisk(t)), withPool(0))
	box := d.fork(t, 1)[0]
	d.value(t, box.ID, "[data := bytearray(b'x' * (8 << 20)), len(data)][1]")
	d.sh(t, box.ID, "echo plan >/root/note")
	for i, name := range []string{"first", "second"} {
		s, err := d.Branch(d.ctx(t, bakeLimit), box.ID, client.BranchRequest{Tag: name, Mode: "live"})
		if err != nil {
			t.Fatal(err)
		}
		if s.Mode != "diff" || !strings.Contains(s.Fallback, "tmpfs") || s.Status != "ready" {
			t.Errorf("branch: %+v", s)
		}
		t.Logf("not live: %s", s.Fallback)
		if info, err := d.Snapshot(d.ctx(t, quietLimit), name); err != nil || info.Mode != "diff" ||
			info.Fallback != s.Fallback {
			t.Errorf("%+v, %v", info, err)
		}
		for _, child := range append(d.forkOf(t, name, 1), box) {
			if got := d.value(t, child.ID, "data == b'x' * (8 << 20) + b'y' * "+fmt.Sprint(i)); got != "True" {
				t.Errorf("%s: sandbox %s: %s", name, child.ID, got)
			}
			if got := d.sh(t, child.ID, "cat /root/note"); got != "plan\n" {
				t.Errorf("%s: sandbox %s has %q", name, child.ID, got)
			}
			if child.ID != box.ID {
				d.kill(t, child)
			}
		}
		d.value(t, box.ID, "[data.extend(b'y'), len(data)][1]")
	}
	d.kill(t, box)
	d.removeBranches(t)
}

// onDisk returns a new directory that is not on tmpfs.
func onDisk(t *testing.T) string {
	t.Helper()
	for _, parent := range []string{"/var/lib/forkd", "/var/tmp"} { // the first directory is on the emulated host's disk
		var st syscall.Statfs_t
		if err := syscall.Statfs(parent, &st); err != nil || st.Type == unix.TMPFS_MAGIC {
			continue
		}
		dir, err := os.MkdirTemp(parent, "fki")
		if err != nil {
			continue
		}
		t.Cleanup(func() {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
		return dir
	}
	t.Skip("no directory on a disk that can be written")
	return ""
}
