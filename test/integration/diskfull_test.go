package integration_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
)

// numbers is the number of lines that a guest writes. The lines take 16 MB.
const numbers = 2_200_000

// fill starts a program in a guest that writes more than fits onto the host's disk. The program
// runs in the background until it has written everything.
func (d *daemon) fill(t *testing.T, id, name string) {
	t.Helper()
	d.sh(t, id, fmt.Sprintf("rm -f /run/%[1]s.done; (seq %[2]d >/root/%[1]s && sync && touch /run/%[1]s.done) >/dev/null 2>&1 &",
		name, numbers))
}

// written waits until the program that was started by fill has written all lines, and checks the
// content of the file.
func (d *daemon) written(t *testing.T, id, name string) {
	t.Helper()
	eventually(t, 3*time.Minute, func() error {
		r, err := d.Exec(d.ctx(t, quietLimit), id, client.ExecRequest{Args: []string{"test", "-e", "/run/" + name + ".done"}})
		if err == nil && r.ExitCode != 0 {
			err = fmt.Errorf("sandbox %s has not written %s", id, name)
		}
		return err
	})
	h := sha256.New()
	for i := range numbers {
		h.Write(append(strconv.AppendInt(nil, int64(i+1), 10), '\n'))
	}
	got := d.sh(t, id, "echo 3 >/proc/sys/vm/drop_caches; sha256sum </root/"+name)
	if want := fmt.Sprintf("%x", h.Sum(nil)); !strings.HasPrefix(got, want) {
		t.Errorf("sandbox %s holds %s with checksum %s, want %s", id, name, got, want)
	}
}

// waits(…) returns when sandboxes are paused because the disk is full. If full is false, waits
// returns when they run.
func (d *daemon) waits(t *testing.T, state string, full bool, boxes ...client.Sandbox) {
	t.Helper()
	for _, b := range boxes {
		eventually(t, 3*time.Minute, func() error {
			s, err := d.Sandbox(d.ctx(t, quietLimit), b.ID)
			if err == nil && (s.State != state || s.DiskFull != full || s.PID != b.PID) {
				err = fmt.Errorf("sandbox %s is %s, disk full %v, process %d; want %s, %v, %d",
					b.ID, s.State, s.DiskFull, s.PID, state, full, b.PID)
			}
			return err
		})
	}
}

// room sets the size of the tmpfs on dir so that the given number of bytes is free. If programs
// have used more space in the meantime, the kernel returns EINVAL, and room tries again.
func room(t *testing.T, dir string, free uint64) {
	t.Helper()
	for try := 0; ; try++ {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		size := fmt.Sprintf("size=%d", (st.Blocks-st.Bfree)*uint64(st.Bsize)+free)
		err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, size)
		if err == nil {
			return
		}
		if err != unix.EINVAL || try == 1000 {
			t.Fatalf("remount %s with %s: %v", dir, size, err)
		}
	}
}

// TestFullDisk checks that sandboxes are paused if they write to a full disk of the host. The
// sandboxes stay paused when the daemon crashes, and can be deleted and rolled back. When there is
// room again, the sandboxes continue and have lost no data.
func TestFullDisk(t *testing.T) {
	const ample, little = 100 << 20, 2 << 20 // more and less than the 64 MiB of free space that a resumption requires
	f := load(t)
	state := f.copyState(t)
	disk := filepath.Join(state, "sandboxes")
	mount(t, disk, "size=8m")
	d := f.start(t, withState(state), withPool(0))
	boxes := d.fork(t, 2)
	box, victim := boxes[0], boxes[1]
	for _, b := range boxes {
		d.fill(t, b.ID, "first")
	}
	d.waits(t, "paused", true, boxes...)
	d.kill(t, victim)
	d.only(t, box)

	room(t, disk, 0)
	d.crash(t)
	d.launch(t)
	d.waits(t, "paused", true, box)
	_, err := d.Eval(d.ctx(t, quietLimit), box.ID, client.EvalRequest{Code: "1"})
	wantError(t, "eval in a sandbox that waits", err, http.StatusConflict, box.ID, "paused")

	room(t, disk, ample)
	d.waits(t, "running", false, box)
	d.written(t, box.ID, "first")

	room(t, disk, little)
	d.fill(t, box.ID, "second")
	d.waits(t, "paused", true, box)
	room(t, disk, little)
	if _, err := d.Rollback(d.ctx(t, bakeLimit), box.ID, ""); err != nil {
		t.Fatalf("roll back a sandbox that waits: %v", err)
	}
	d.waits(t, "running", false, box)
	d.alive(t, box.ID)
	if got := d.sh(t, box.ID, "ls /root"); strings.Contains(got, "second") || strings.Contains(got, "first") {
		t.Errorf("after the rollback /root has %q", got)
	}
	room(t, disk, ample)
	d.fill(t, box.ID, "third")
	d.written(t, box.ID, "third")
}
