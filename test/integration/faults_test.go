package integration_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
)

// TestVMEnds makes VMs end in every way other than at a client's request. The sandboxes of these
// VMs must report the reason, and other sandboxes must not be affected.
func TestVMEnds(t *testing.T) {
	d := loadDistribution(t).start(t, withPool(0))
	trigger := func(c string) func(*testing.T, client.Sandbox) {
		return func(t *testing.T, s client.Sandbox) {
			t.Helper()
			_, err := d.Exec(d.ctx(t, quietLimit), s.ID, client.ExecRequest{Args: []string{"/bin/sh", "-c",
				"echo " + c + " >/proc/sysrq-trigger; sleep 60"}})
			wantError(t, "the exec that ends the VM", err, http.StatusConflict, s.ID, "exited")
		}
	}
	cases := []struct {
		name   string
		end    func(*testing.T, client.Sandbox)
		reason string
		words  []string
	}{
		{"VMM killed", func(t *testing.T, s client.Sandbox) {
			if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}, "internal", []string{"forkd-vmm was killed"}},
		{"guest panics", trigger("c"), "panic", []string{"Kernel panic - not syncing: sysrq"}},
		{"guest powers off", trigger("o"), "poweroff", nil},
		{"guest resets", trigger("b"), "reset", nil},
	}
	boxes := d.fork(t, len(cases)+1)
	bystander := boxes[len(cases)]
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := boxes[i]
			c.end(t, s)
			var now client.Sandbox
			eventually(t, quietLimit, func() (err error) {
				now, err = d.Sandbox(d.ctx(t, quietLimit), s.ID)
				if err == nil && now.State != "exited" {
					err = fmt.Errorf("sandbox %s is %s", s.ID, now.State)
				}
				return err
			})
			if now.ExitReason != c.reason {
				t.Errorf("reason %q (%s), want %q", now.ExitReason, now.ExitDetail, c.reason)
			}
			_, err := d.Eval(d.ctx(t, quietLimit), s.ID, client.EvalRequest{Code: "1"})
			wantError(t, "eval", err, http.StatusConflict, append(c.words, s.ID, "exited", now.ExitReason)...)
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", s.PID)); err == nil {
				t.Errorf("process %d is still there", s.PID)
			}
			eventually(t, quietLimit, func() error {
				if _, err := os.Stat(filepath.Join(d.state, "sandboxes", s.ID)); err == nil {
					return errors.New("its disk is still there")
				}
				return nil
			})
			d.alive(t, bystander.ID)
			d.kill(t, s)
		})
	}
	d.only(t, bystander)
}

func TestConsoleFlood(t *testing.T) {
	d := loadDistribution(t).start(t, withPool(0))
	boxes := d.fork(t, 2)
	eventually(t, quietLimit, func() error { // a busy host may need more than the five seconds of the command
		r, err := d.Exec(d.ctx(t, quietLimit), boxes[0].ID, client.ExecRequest{
			Args: []string{"/bin/sh", "-c", "yes flooding the console >/dev/console"}, TimeoutSecs: 5,
		})
		if err != nil || !r.TimedOut {
			t.Fatalf("the flood ended with %+v, %v", r, err)
		}
		console, err := d.Console(d.ctx(t, quietLimit), boxes[0].ID)
		if err != nil || !bytes.Contains(console, []byte("flooding the console")) || len(console) > 64<<10 {
			return fmt.Errorf("console: %d bytes, %v", len(console), err)
		}
		return nil
	})
	files, err := filepath.Glob(filepath.Join(d.run, "vm", boxes[0].ID, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if st, err := os.Stat(name); err == nil && st.Size() > 128<<10 {
			t.Errorf("%s has grown to %d bytes", name, st.Size())
		}
	}
	d.alive(t, boxes[0].ID)
	d.alive(t, boxes[1].ID)
}

// mount mounts a tmpfs on dir until the end of the test. Only the owner has access to the tmpfs, because the
// daemon requires this of its directories.
func mount(t *testing.T, dir, options string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options+",mode=0700"); err != nil {
		t.Fatalf("mount a small tmpfs (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

func remount(t *testing.T, dir, options string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, options); err != nil {
		t.Fatal(err)
	}
}

// TestFullWhileForking fills a file system that the daemon writes to during a fork of eight
// children.
func TestFullWhileForking(t *testing.T) {
	for _, c := range []struct{ name, dir, small, large string }{
		{"run directory", "run/vm", "nr_inodes=40", "nr_inodes=400"},
		{"disk tops", "sandboxes", "size=24k", "size=24m"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := load(t)
			state := f.copyState(t)
			full := filepath.Join(state, c.dir)
			mount(t, full, c.small)
			d := f.start(t, withState(state), withRun(filepath.Join(state, "run")), withPool(0))
			box := d.fork(t, 1)[0]
			held := tree(t, full)
			_, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: tag, N: 8})
			wantError(t, "fork of 8", err, http.StatusInsufficientStorage, `"`+tag+`"`, "none is kept",
				"no space left on device")
			if now := tree(t, full); len(now) != len(held) {
				t.Errorf("left behind: %q, before %q", now, held)
			}
			if n := len(d.vmms(t)); n != 1 {
				t.Errorf("%d VMMs, want that of the first sandbox", n)
			}
			d.only(t, box)
			d.alive(t, box.ID)
			remount(t, full, c.large)
			d.fork(t, 8)
		})
	}
}

// TestNoRoomInRAM checks that the memory of a snapshot is read from disk if it does not fit into
// the RAM directory.
func TestNoRoomInRAM(t *testing.T) {
	f := load(t)
	ram := filepath.Join(t.TempDir(), "ram")
	mount(t, ram, "size=8m")
	d := f.start(t, withRAM(ram), withPool(0))
	for _, s := range d.fork(t, 2) {
		d.alive(t, s.ID)
	}
	if left := tree(t, ram); len(left) > 1 {
		t.Errorf("in the RAM directory: %q", left)
	}
}
