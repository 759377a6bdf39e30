package integration_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmtest"
)

// TestUpgrade starts a daemon of an earlier version and replaces it with the present version.
// Command prepare has built the earlier version from the repository's history. The new daemon takes
// over the sandboxes whose VMMs speak its protocol. It does not touch other sandboxes, and logs the
// reason. When the earlier version runs again, it takes over the sandboxes that were left alone.
func TestUpgrade(t *testing.T) {
	f := open(t)
	if f.assets.NoBuild != "" {
		t.Skip(vmtest.Lacking, f.assets.NoBuild)
	}
	for i, b := range f.assets.Earlier {
		t.Run(fmt.Sprintf("from control protocol %d", b.Protocol), func(t *testing.T) {
			dir := filepath.Join(f.root, fmt.Sprint("u", i))
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			earlier := filepath.Join(dir, "forkd")
			if err := copyFile(earlier, b.Forkd, 0o700); err != nil {
				t.Fatal(err)
			}
			d := f.start(t, withProgram(earlier), withState(filepath.Join(dir, "s")), withRun(filepath.Join(dir, "r")),
				withRAM(filepath.Join(dir, "m")))
			req := client.BakeRequest{Tag: "bare", Kernel: b.Kernel.VMLinux, Initrd: b.Kernel.Initrd, MemSizeMiB: 128,
				Rootfs: filepath.Join(f.assets.Images["base"], "rootfs.ext4")}
			if err := d.bake(t, req); err != nil {
				t.Fatal(err)
			}
			boxes := d.forkOf(t, "bare", 2)
			live, asleep := boxes[0], boxes[1]
			for _, s := range boxes {
				d.sh(t, s.ID, "echo "+s.ID+" >/root/note; "+startTicks)
			}
			if _, err := d.Suspend(d.ctx(t, quietLimit), asleep.ID); err != nil {
				t.Fatal(err)
			}
			d.crash(t)
			d.program = f.program
			d.launch(t)

			_, err := d.Resume(d.ctx(t, quietLimit), asleep.ID)
			if b.Protocol == vmmproto.Version {
				if err != nil {
					t.Fatal(err)
				}
				d.noted(t, asleep.ID)
				child := d.forkOf(t, "bare", 1)[0]
				d.noted(t, live.ID)
				d.only(t, live, asleep, child)
				d.usedAfterUpgrade(t, live)
				return
			}
			if err == nil {
				d.noted(t, asleep.ID)
			} else { // together with the protocol, the snapshot format may have changed
				wantError(t, "resume", err, http.StatusConflict, "format version", "bake it again")
			}
			d.only(t, asleep)
			d.leftAlone(t, live, b.Protocol)
			d.kill(t, asleep)
			d.crash(t)
			d.program = earlier
			d.launch(t)
			d.only(t, live)
			d.noted(t, live.ID)
			d.kill(t, live)
		})
	}
}

// startTicks starts a process that writes to a file. ticksAndNote waits until it has written, and
// prints another file.
const (
	startTicks   = "(while sleep 0.1; do date >>/root/ticks; done) >/dev/null 2>&1 &"
	ticksAndNote = "n=$(wc -l </root/ticks); while [ $n = $(wc -l </root/ticks) ]; do sleep 0.1; done; cat /root/note"
)

// noted checks that a sandbox has the files from before the upgrade, and that its process is
// running.
func (d *daemon) noted(t *testing.T, id string) {
	t.Helper()
	if got := d.sh(t, id, ticksAndNote); got != id+"\n" {
		t.Errorf("sandbox %s has %q", id, got)
	}
}

// usedAfterUpgrade performs every operation that changes the state of a VMM of the earlier version.
func (d *daemon) usedAfterUpgrade(t *testing.T, s client.Sandbox) {
	t.Helper()
	d.noted(t, s.ID)
	d.branchOf(t, s.ID, "later", "live")
	child := d.forkOf(t, "later", 1)[0]
	if got := d.sh(t, child.ID, "cat /root/note"); got != s.ID+"\n" {
		t.Errorf("a child of its branch has %q", got)
	}
	d.kill(t, child)
	if _, err := d.Rollback(d.ctx(t, bakeLimit), s.ID, "later"); err != nil {
		t.Fatal(err)
	}
	d.noted(t, s.ID)
	if _, err := d.Suspend(d.ctx(t, bakeLimit), s.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Resume(d.ctx(t, bakeLimit), s.ID); err != nil {
		t.Fatal(err)
	}
	d.noted(t, s.ID)
}

// leftAlone checks that a sandbox continues to run, and that the daemon and its log say why it was
// not taken over.
func (d *daemon) leftAlone(t *testing.T, s client.Sandbox, protocol int) {
	t.Helper()
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", s.PID)); err != nil {
		t.Errorf("the VMM that was left alone: %v", err)
	}
	version, err := d.Version(d.ctx(t, stepLimit))
	if left := version.LeftAlone; err != nil || len(left) != 1 || left[0].ID != s.ID || left[0].PID != s.PID {
		t.Errorf("the daemon says that it has left alone %+v, %v", left, err)
	}
	log, err := os.ReadFile(d.log.Name())
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(log) {
		if text := string(line); strings.Contains(text, s.ID) && strings.Contains(text, "left alone") {
			for _, want := range []string{fmt.Sprintf("control protocol %d", protocol),
				fmt.Sprintf("this daemon %d", vmmproto.Version),
				fmt.Sprintf("process %d", s.PID)} {
				if !strings.Contains(text, want) {
					t.Errorf("want %q in the log: %s", want, text)
				}
			}
			return
		}
	}
	t.Errorf("the log does not say why sandbox %s was left alone", s.ID)
}
