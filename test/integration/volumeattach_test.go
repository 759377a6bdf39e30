package integration_test

import (
	"testing"
	"time"

	"github.com/forkd/forkd/client"
)

// attached attaches a volume to a running sandbox and detaches it. In between, the volume behaves
// like a volume of a fork. If the daemon is killed meanwhile, the sandbox either has the volume or
// does not have it.
func (d *daemon) attached(t *testing.T) {
	box := d.forkTag(t, "slots")
	data := client.VolumeMount{Name: "data", Path: "/data"}
	attach := func(what string, m client.VolumeMount) {
		t.Helper()
		s, err := d.AttachVolume(d.ctx(t, bakeLimit), box.ID, m)
		if err != nil || len(s.Volumes) != 1 || s.Volumes[0] != m {
			t.Fatalf("%s: volumes %+v, %v", what, s.Volumes, err)
		}
	}
	detach := func(what string) {
		t.Helper()
		if err := d.DetachVolume(d.ctx(t, bakeLimit), box.ID, "data"); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		d.wantWriter(t, what, "")
	}
	d.sh(t, box.ID, "echo here >/data && test -f /data") // the path is a file
	_, err := d.AttachVolume(d.ctx(t, bakeLimit), box.ID, data)
	wantError(t, "a path that is a file", err, 502, "mount volume", "/data")
	d.wantWriter(t, "a path that is a file", "")
	d.sh(t, box.ID, "rm /data")

	attach("attach", data)
	d.wantWriter(t, "attach", box.ID)
	d.sh(t, box.ID, "rm -rf /data/*; "+fillVolume)
	if _, err := d.Branch(d.ctx(t, bakeLimit), box.ID, client.BranchRequest{Tag: "v-attached"}); err != nil {
		t.Fatal(err)
	}
	d.sh(t, box.ID, "rm -r /data/tree")
	if _, err := d.Rollback(d.ctx(t, bakeLimit), box.ID, "v-attached"); err != nil {
		t.Fatal(err)
	}
	d.holds(t, "rolled back", box.ID)
	d.sh(t, box.ID, "cd /data && { sleep 1000 & } && echo $! >/run/pid")
	wantError(t, "a program uses the volume", d.DetachVolume(d.ctx(t, bakeLimit), box.ID, "data"), 409, "in use", "sleep")
	d.wantWriter(t, "a program uses the volume", box.ID)
	d.crash(t)
	d.launch(t)
	d.holds(t, "after a killed daemon", box.ID)
	d.sh(t, box.ID, "kill $(cat /run/pid)")
	eventually(t, quietLimit, func() error { return d.DetachVolume(d.ctx(t, bakeLimit), box.ID, "data") })
	d.wantWriter(t, "detach", "")
	d.sh(t, box.ID, "test ! -e /data/sums")
	attach("read-only", client.VolumeMount{Name: "data", Path: "/data", Mode: "ro"})
	d.holds(t, "read-only", box.ID)
	d.wantWriter(t, "read-only", "")
	detach("read-only")

	d.detachedFirst(t, box.ID)

	for i := range 3 {
		ctx, done := d.ctx(t, bakeLimit), make(chan struct{})
		go func() {
			defer close(done)
			if i == 0 {
				_, _ = d.AttachVolume(ctx, box.ID, data) // the daemon is killed meanwhile
			} else {
				_ = d.DetachVolume(ctx, box.ID, "data")
			}
		}()
		time.Sleep(time.Duration(i) * 50 * time.Millisecond)
		d.crash(t)
		<-done
		d.launch(t)
		s, err := d.Sandbox(d.ctx(t, quietLimit), box.ID)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Volumes) == 0 {
			d.wantWriter(t, "killed, and not attached", "")
			attach("again", data)
		}
		d.wantWriter(t, "attached", box.ID)
		d.holds(t, "after a killed daemon", box.ID)
	}
	detach("at the end")
	d.kill(t, box)
	next := d.forkWith(t, 1, "")[0]
	d.holds(t, "the next writer", next.ID)
	d.sh(t, next.ID, "rm -r /data/*")
	d.kill(t, next)
	d.removeTag(t, "v-second") // the sandbox ran from it
	d.removeTag(t, "v-attached")
}

// detachedFirst attaches two volumes to a sandbox, and detaches the first of them. The other volume
// stays in its slot, and is in branches, in children and after a rollback. If the daemon is killed,
// it still knows the slots.
func (d *daemon) detachedFirst(t *testing.T, id string) {
	if _, err := d.CreateVolume(d.ctx(t, quietLimit), client.VolumeRequest{Name: "more", SizeMiB: 16}); err != nil {
		t.Fatal(err)
	}
	detach := func(name string) {
		t.Helper()
		if err := d.DetachVolume(d.ctx(t, bakeLimit), id, name); err != nil {
			t.Fatal(err)
		}
	}
	more := client.VolumeMount{Name: "more", Path: "/more"}
	for _, m := range []client.VolumeMount{{Name: "data", Path: "/data"}, more} {
		if _, err := d.AttachVolume(d.ctx(t, bakeLimit), id, m); err != nil {
			t.Fatal(err)
		}
	}
	d.sh(t, id, "echo first >/more/x && sync")
	detach("data")
	d.wantWriter(t, "the first of two is detached", "")
	s, err := d.Sandbox(d.ctx(t, quietLimit), id)
	if err != nil || len(s.Volumes) != 1 || s.Volumes[0] != more {
		t.Fatalf("volumes %+v, %v", s.Volumes, err)
	}
	if _, err := d.Branch(d.ctx(t, bakeLimit), id, client.BranchRequest{Tag: "v-second"}); err != nil {
		t.Fatal(err)
	}
	d.sh(t, id, "echo later >/more/x && test ! -e /data/sums")
	child := d.forkTagWith(t, "v-second", 1, "")[0] // the volume data, in the free slot
	d.holds(t, "a child of a branch with a free slot", child.ID)
	if got := d.sh(t, child.ID, "cat /more/x"); got != "first\n" {
		t.Errorf("a child has %q", got)
	}
	d.kill(t, child)
	d.crash(t)
	d.launch(t)
	if got := d.sh(t, id, "cat /more/x"); got != "later\n" {
		t.Errorf("after a killed daemon: %q", got)
	}
	if _, err := d.AttachVolume(d.ctx(t, bakeLimit), id, client.VolumeMount{Name: "data", Path: "/data"}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Rollback(d.ctx(t, bakeLimit), id, "v-second"); err != nil {
		t.Fatal(err)
	}
	d.holds(t, "attached after the branch", id)
	if got := d.sh(t, id, "cat /more/x"); got != "first\n" {
		t.Errorf("after a rollback: %q", got)
	}
	detach("data")
	detach("more")
	if err := d.DeleteVolume(d.ctx(t, quietLimit), "more"); err != nil {
		t.Error(err)
	}
}
