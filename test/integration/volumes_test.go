package integration_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
)

// Scripts that write files with a known checksum to the volume at /data, and check them.
const (
	fillVolume  = "mkdir -p /data/tree && for i in $(seq 100); do echo $i-$0 >/data/tree/$i; done && cd /data && sha256sum tree/* >sums"
	checkVolume = "cd /data && sha256sum --quiet -c sums && wc -l <sums"
)

// volumes starts a daemon with a parent that has volume slots, and makes the volume "data".
func volumes(t *testing.T) *daemon {
	t.Helper()
	f := open(t)
	d := f.start(t)
	req := f.bakeRequest(t, "slots")
	req.VolumeSlots, req.Warmup = 2, client.Warmup{} // no test of volumes uses Python
	if err := d.bake(t, req); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.DeleteSnapshot(d.ctx(t, quietLimit), "slots", client.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	if _, err := d.CreateVolume(d.ctx(t, quietLimit), client.VolumeRequest{Name: "data", SizeMiB: 64}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.DeleteVolume(d.ctx(t, quietLimit), "data"); err != nil {
			t.Error(err)
		}
	})
	return d
}

// forkWith starts n sandboxes that mount the volume "data" at /data.
func (d *daemon) forkWith(t *testing.T, n int, mode string) []client.Sandbox {
	t.Helper()
	return d.forkTagWith(t, "slots", n, mode)
}

// forkTagWith starts n sandboxes from a snapshot. They mount the volume "data" at /data.
func (d *daemon) forkTagWith(t *testing.T, tag string, n int, mode string) []client.Sandbox {
	t.Helper()
	r, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: tag, N: n,
		Volumes: []client.VolumeMount{{Name: "data", Path: "/data", Mode: mode}}})
	if err != nil {
		t.Fatalf("fork %d with a volume: %v", n, err)
	}
	return r.Sandboxes
}

// wantWriter checks which sandbox writes to the volume "data".
func (d *daemon) wantWriter(t *testing.T, what, want string) {
	t.Helper()
	v, err := d.Volume(d.ctx(t, quietLimit), "data")
	if err != nil || v.Writer != want {
		t.Errorf("%s: the volume has the writer %q, want %q (%v)", what, v.Writer, want, err)
	}
}

// holds checks that the volume of a sandbox has the files of fillVolume.
func (d *daemon) holds(t *testing.T, what, id string) {
	t.Helper()
	if got := strings.TrimSpace(d.sh(t, id, checkVolume)); got != "100" {
		t.Errorf("%s: the volume has %s intact files, want 100", what, got)
	}
}

// TestVolumes uses one parent for all tests of volumes, because baking takes minutes on an emulated host.
func TestVolumes(t *testing.T) {
	d := volumes(t)
	t.Run("one sandbox after another", d.passOn)
	t.Run("a sandbox that runs", d.attached)
	t.Run("E2B", d.mountedByE2B)
	t.Run("a directory of this host", d.sharedDirectory)
	t.Run("killed daemons", d.killedWithVolume)
	t.Run("branches", d.branchedWithVolume)
	t.Run("suspensions", d.suspendedWithVolume)
	t.Run("branches of killed daemons", d.killedWhileBranched)
}

// mountedByE2B mounts a volume by E2B's API, and checks its data in a later sandbox.
func (d *daemon) mountedByE2B(t *testing.T) {
	call := d.e2b(t)
	const object = "application/json"
	var v struct{ VolumeID string }
	if err := json.Unmarshal([]byte(call("POST", "/volumes", object, `{"name":"e2b"}`, 201, nil)), &v); err != nil {
		t.Fatal(err)
	}
	// Without a sandbox, a VM for each request serves the files of the volume.
	files := "/volumecontent/" + v.VolumeID
	call("GET", files+"/path?path=/in/x", "", "", 404, nil)
	call("PUT", files+"/file?path=/in/x&force=true", "application/octet-stream", "sent\n", 201, nil)
	for _, c := range []struct{ name, script, want string }{
		{"e2b", "echo kept >/data/x && cat /data/in/x /data/x && sync", "sent\nkept\n"},
		{"e2b:copy", "cat /data/x && rm /data/x", "kept\n"},
		{"e2b:ro", "cat /data/x; touch /data/y 2>&1 | grep -c Read-only", "kept\n1\n"},
	} {
		var box struct{ SandboxID string }
		body := `{"templateID":"slots","timeout":600,"volumeMounts":[{"name":"` + c.name + `","path":"/data"}]}`
		if err := json.Unmarshal([]byte(call("POST", "/v2/sandboxes", object, body, 201, nil)), &box); err != nil {
			t.Fatal(err)
		}
		if got := d.sh(t, box.SandboxID, c.script); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if c.name == "e2b" {
			call("POST", "/v2/sandboxes", object, body, 409, nil) // a second writer
			call("DELETE", "/volumes/"+v.VolumeID, object, "", 409, nil)
			call("PUT", files+"/file?path=/y", "application/octet-stream", "", 409, nil)
			call("GET", files+"/path?path=/x", "", "", 404, nil) // the sandbox has written x since the mount
		}
		call("DELETE", "/sandboxes/"+box.SandboxID, object, "", 204, nil)
	}
	if got := call("GET", files+"/file?path=/x", "", "", 200, nil); got != "kept\n" {
		t.Errorf("the file has %q", got)
	}
	call("DELETE", files+"/path?path=/in", "", "", 204, nil)
	if got := call("GET", files+"/dir?path=/", "", "", 200, nil); strings.Count(got, `"path"`) != 2 || // also lost+found
		!strings.Contains(got, `"path":"/x"`) {
		t.Errorf("the directory has %s", got)
	}
	call("DELETE", "/volumes/"+v.VolumeID, object, "", 204, nil)
}

// sharedDirectory gives a directory of this host to two sandboxes and to a fork of one of them. All
// three have the files as they were when the command ran, and cannot change them. No volume is
// left.
func (d *daemon) sharedDirectory(t *testing.T) {
	dir := t.TempDir()
	script := strings.ReplaceAll(strings.ReplaceAll(fillVolume, "/data/", dir+"/"), "/data", dir)
	if out, err := exec.Command("sh", "-c", script+" && ln -s sums link").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var f client.Forked
	d.cliJSON(t, &f, "fork", "slots", "-n", "2", "-v", dir+":/data:ro")
	if err := os.WriteFile(filepath.Join(dir, "later"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if list, _, err := d.VolumePage(d.ctx(t, quietLimit), client.PageRequest{}); err != nil || len(list) != 1 {
		t.Errorf("volumes %+v, %v: want only data", list, err)
	}
	if _, err := d.Branch(d.ctx(t, bakeLimit), f.Sandboxes[0].ID, client.BranchRequest{Tag: "shared"}); err != nil {
		t.Fatal(err)
	}
	child, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: "shared", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, box := range append(f.Sandboxes, child.Sandboxes...) {
		d.holds(t, "a shared directory", box.ID)
		const look = "readlink /data/link; ls -A /data; rm /data/sums 2>&1 | grep -o Read-only; " +
			"touch /data/x 2>&1 | grep -o Read-only"
		if got, want := d.sh(t, box.ID, look), "sums\nlink\nlost+found\nsums\ntree\nRead-only\nRead-only\n"; got != want {
			t.Errorf("%s has %q, want %q", box.ID, got, want)
		}
	}
	d.kill(t, append(f.Sandboxes, child.Sandboxes...)...)
	if err := d.DeleteSnapshot(d.ctx(t, quietLimit), "shared", client.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// passOn gives a volume to one sandbox after another. The data of the volume outlives the deletion of
// a sandbox, a killed daemon and a killed VM. Readers and copies have the data that the volume had
// when they were mounted.
func (d *daemon) passOn(t *testing.T) {
	box := d.forkWith(t, 1, "")[0]
	d.wantWriter(t, "fork", box.ID)
	d.sh(t, box.ID, fillVolume) // not synced: the deletion unmounts the volume
	_, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: "slots", N: 1,
		Volumes: []client.VolumeMount{{Name: "data", Path: "/data"}}})
	wantError(t, "a second writer", err, 409, "writes to it", box.ID)
	_, err = d.Branch(d.ctx(t, bakeLimit), box.ID, client.BranchRequest{Tag: "b", DiskOnly: true})
	wantError(t, "branch of the disk", err, 409, "has mounted volumes")
	d.holds(t, "after a refused branch", box.ID)
	d.kill(t, box)
	d.wantWriter(t, "deletion", "")

	copies := d.forkWith(t, 2, "copy")
	readers := d.forkWith(t, 2, "ro")
	for _, r := range readers {
		d.holds(t, "reader", r.ID)
		if got := d.sh(t, r.ID, "touch /data/x 2>&1 || true"); !strings.Contains(got, "Read-only") {
			t.Errorf("a reader writes: %q", got)
		}
	}
	for i, c := range copies {
		d.holds(t, "copy", c.ID)
		d.sh(t, c.ID, fmt.Sprintf("rm -r /data/tree && echo %d >/data/own && sync", i))
	}
	for i, c := range copies {
		if got := d.sh(t, c.ID, "cat /data/own; ls /data | grep -c tree || true"); got != fmt.Sprintf("%d\n0\n", i) {
			t.Errorf("copy %d has %q", i, got)
		}
	}
	d.wantWriter(t, "readers and copies", "")
	box = d.forkWith(t, 1, "")[0]
	d.holds(t, "writer beside copies", box.ID)
	readers = append(readers, d.besideWriter(t, box)...)

	d.crash(t)
	d.launch(t)
	d.wantWriter(t, "a killed daemon", box.ID)
	if s, err := d.Sandbox(d.ctx(t, quietLimit), box.ID); err != nil || len(s.Volumes) != 1 ||
		s.Volumes[0].Path != "/data" {
		t.Errorf("after a killed daemon: %+v, %v", s, err)
	}
	d.holds(t, "after a killed daemon", box.ID)
	d.holds(t, "reader after a killed daemon", readers[0].ID)
	d.sh(t, box.ID, "echo synced >/data/late && sync")
	if err := syscall.Kill(box.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, quietLimit, func() error {
		if v, err := d.Volume(d.ctx(t, quietLimit), "data"); err != nil || v.Writer != "" {
			return fmt.Errorf("after a killed VM the writer is %q (%v)", v.Writer, err)
		}
		return nil
	})
	next := d.forkWith(t, 1, "")[0]
	d.holds(t, "after a killed VM", next.ID)
	if got := d.sh(t, next.ID, "cat /data/late"); got != "synced\n" {
		t.Errorf("after a killed VM the volume has %q", got)
	}
	d.kill(t, append(append(copies, readers...), box, next)...)
}

// killedWithVolume kills the daemon while it starts or deletes a sandbox that writes to a volume.
// Afterwards the data of the volume is complete. The volume has no writer, or its writer exists.
func (d *daemon) killedWithVolume(t *testing.T) {
	box := d.forkWith(t, 1, "")[0]
	d.sh(t, box.ID, fillVolume)
	d.kill(t, box)
	for i := range 4 {
		delay := time.Duration(i*i) * 300 * time.Millisecond
		ctx, done := d.ctx(t, bakeLimit), make(chan struct{})
		go func() {
			defer close(done)
			_, _ = d.Fork(ctx, client.ForkRequest{SnapshotTag: "slots", N: 1, // the daemon is killed meanwhile
				Volumes: []client.VolumeMount{{Name: "data", Path: "/data"}}})
		}()
		time.Sleep(delay)
		d.crash(t)
		<-done
		d.launch(t)
		box := d.writer(t, fmt.Sprintf("killed %v after the request for a fork", delay))
		d.holds(t, "after a fork that was cut off", box.ID)
		d.sh(t, box.ID, fmt.Sprintf("echo %d >/data/round && sync", i))
		done = make(chan struct{})
		go func() {
			defer close(done)
			_ = d.Kill(ctx, box.ID) // the daemon is killed meanwhile
		}()
		time.Sleep(delay / 4)
		d.crash(t)
		<-done
		d.launch(t)
		box = d.writer(t, fmt.Sprintf("killed %v after the request for a deletion", delay/4))
		d.holds(t, "after a deletion that was cut off", box.ID)
		if got := d.sh(t, box.ID, "cat /data/round"); got != fmt.Sprintf("%d\n", i) {
			t.Errorf("round %d: the volume has %q", i, got)
		}
		d.kill(t, box)
	}
}

// writer returns the only sandbox, which writes to the volume "data". If there is no sandbox, it forks one.
func (d *daemon) writer(t *testing.T, what string) client.Sandbox {
	t.Helper()
	list, err := d.Sandboxes(d.ctx(t, quietLimit))
	if err != nil || len(list) > 1 {
		t.Fatalf("%s: sandboxes %+v, %v", what, list, err)
	}
	if len(list) == 0 {
		d.wantWriter(t, what, "")
		return d.forkWith(t, 1, "")[0]
	}
	d.wantWriter(t, what, list[0].ID)
	return list[0]
}

// besideWriter starts readers beside a sandbox that writes to the volume "data". They see the
// volume as it was when the sandbox was last branched, or when it mounted the volume.
func (d *daemon) besideWriter(t *testing.T, writer client.Sandbox) []client.Sandbox {
	const look = "ls /data | grep -c round || true"
	d.sh(t, writer.ID, "echo 1 >/data/round1 && sync")
	before := d.forkWith(t, 1, "ro")[0]
	if _, err := d.Branch(d.ctx(t, bakeLimit), writer.ID, client.BranchRequest{Tag: "v-readers"}); err != nil {
		t.Fatal(err)
	}
	d.sh(t, writer.ID, "echo 2 >/data/round2 && sync")
	after := d.forkWith(t, 1, "ro")[0]
	for what, c := range map[string]struct{ id, want string }{
		"a reader before the branch": {before.ID, "0\n"}, "a reader after the branch": {after.ID, "1\n"},
		"the writer": {writer.ID, "2\n"},
	} {
		if got := d.sh(t, c.id, look); got != c.want {
			t.Errorf("%s sees %q rounds, want %q", what, got, c.want)
		}
		d.holds(t, what, c.id)
	}
	d.sh(t, writer.ID, "rm /data/round*")
	d.removeTag(t, "v-readers")
	return []client.Sandbox{before, after}
}
