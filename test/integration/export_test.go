package integration_test

import (
	_ "embed"
	"encoding/base64"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// unpacking is a Python program that unpacks an export in a guest.
//
//go:embed testdata/unpacking.py
var unpacking string

// export writes the archive of an export to a file, and returns the path of the file and its size.
func (d *daemon) export(t *testing.T, req client.ExportRequest) (path string, size int64) {
	t.Helper()
	archive, err := d.Export(d.ctx(t, bakeLimit), req)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	f, err := os.Create(filepath.Join(t.TempDir(), "export.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if size, err = io.Copy(f, archive); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s to %s, %s: %d bytes", req.From, req.To, req.Path, size)
	return f.Name(), size
}

// TestExport changes random trees in a sandbox. If the export is unpacked in another sandbox with
// the older tree, the files there must equal those of the first sandbox: their types, content, hole
// sizes, hard links, link targets, modes, owners and attributes. An export in the other direction
// gives the older tree again.
func TestExport(t *testing.T) {
	d := load(t).start(t)
	box := d.fork(t, 1)[0]
	for name, text := range map[string]string{"differing.py": differing, "unpacking.py": unpacking} {
		if err := d.WriteFile(d.ctx(t, quietLimit), box.ID, "/root/"+name, strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	before := d.differs(t, box.ID, "make", "/root/t", "1", "300")
	d.branchOf(t, box.ID, "before", "live")
	twin, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: "before", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := twin.Sandboxes[0].ID
	unpack := func(what, archive string, want map[string]seenFile) {
		t.Helper()
		f, err := os.Open(archive)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := d.WriteFile(d.ctx(t, bakeLimit), id, "/root/export.tar", f); err != nil {
			t.Fatal(err)
		}
		d.sh(t, id, "python3 /root/unpacking.py /root/export.tar")
		wantFiles(t, what, d.differs(t, id, "list", "/root/t"), want)
	}
	now := d.differs(t, box.ID, "change", "/root/t", "10", "200")
	archive, _ := d.export(t, client.ExportRequest{From: "before", To: box.ID, Path: "/root/t"})
	unpack("forwards", archive, now)
	archive, _ = d.export(t, client.ExportRequest{From: box.ID, To: "before", Path: "/root/t"})
	unpack("backwards", archive, before)

	// Export a file of a terabyte that contains one byte.
	d.sh(t, box.ID, "truncate -s 1T /root/t/large; printf x | dd of=/root/t/large bs=1 seek=1G conv=notrunc status=none")
	_, size := d.export(t, client.ExportRequest{From: id, To: box.ID, Path: "/root/t/large"})
	if size > 1<<20 {
		t.Errorf("the archive of a hole has %d bytes", size)
	}

	// Export a file whose name in the archive would delete another file.
	d.sh(t, box.ID, "touch /root/t/.wh.large")
	_, err = d.Export(d.ctx(t, bakeLimit), client.ExportRequest{From: "before", To: box.ID, Path: "/root/t"})
	wantError(t, "a whiteout of the guest", err, 400)
	d.export(t, client.ExportRequest{From: "before", To: box.ID, Path: "/root/t", Partial: true})
	d.kill(t, box, twin.Sandboxes[0])
	d.removeBranches(t)
}

// wantFiles compares two listings of a directory.
func wantFiles(t *testing.T, what string, got, want map[string]seenFile) {
	t.Helper()
	for key, f := range want {
		if g, ok := got[key]; !ok || !reflect.DeepEqual(g, f) {
			path, _ := base64.StdEncoding.DecodeString(key)
			t.Errorf("%s: %q is %+v (%t), want %+v", what, path, g, ok, f)
		}
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			path, _ := base64.StdEncoding.DecodeString(key)
			t.Errorf("%s: %q is there", what, path)
		}
	}
}

// TestDaemonCrashWhileExporting kills the daemon while it sends an archive. The client must notice that the
// archive is incomplete, and the next daemon removes the snapshots and VMs of the export.
func TestDaemonCrashWhileExporting(t *testing.T) {
	d := load(t).start(t)
	box := d.fork(t, 1)[0]
	d.sh(t, box.ID, "head -c 64M /dev/urandom >/root/large")
	archive, err := d.Export(d.ctx(t, bakeLimit), client.ExportRequest{To: box.ID, Path: "/root/large"})
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	if _, err := io.ReadFull(archive, make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	d.crash(t)
	if n, err := io.Copy(io.Discard, archive); err == nil {
		t.Errorf("the archive ended after %d bytes, without an error", n)
	} else {
		t.Logf("%d bytes were sent: %v", n, err)
	}
	d.launch(t)
	d.only(t, box)
	list, err := d.Snapshots(d.ctx(t, quietLimit))
	if err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	if _, size := d.export(t, client.ExportRequest{To: box.ID, Path: "/root/large"}); size < 64<<20 {
		t.Errorf("%d bytes", size)
	}
	d.alive(t, box.ID)
	d.kill(t, box)
}
