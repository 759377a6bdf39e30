package integration_test

import (
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/host/owner"
)

// differing is a Python program that makes, changes and lists trees of files in a guest.
//
//go:embed testdata/differing.py
var differing string

// seenFile is a file as a guest sees it.
type seenFile struct {
	Type   string
	Mode   uint32
	UID    uint32
	GID    uint32
	Size   uint64
	Sum    string // checksum of the content
	Target string
	Xattrs map[string]string
}

// differs runs differing.py in a sandbox, and returns the list of files that it prints.
func (d *daemon) differs(t *testing.T, id string, args ...string) (files map[string]seenFile) {
	t.Helper()
	r, err := d.Exec(d.ctx(t, bakeLimit), id, client.ExecRequest{
		Args: append([]string{"python3", "/root/differing.py"}, args...), TimeoutSecs: 600})
	if err != nil || r.ExitCode != 0 {
		t.Fatalf("differing.py %q: %+v, %v", args, r, err)
	}
	if err := json.Unmarshal([]byte(r.Stdout), &files); err != nil {
		t.Fatal(err)
	}
	return files
}

// wantDiff checks that a comparison has exactly the differences between two listings of a directory.
func wantDiff(t *testing.T, what string, got client.Diff, old, now map[string]seenFile) {
	t.Helper()
	want := map[string]string{}
	for p, f := range old {
		if n, ok := now[p]; !ok {
			want[p] = "deleted"
		} else if !reflect.DeepEqual(f, n) {
			want[p] = "changed"
		}
	}
	for p := range now {
		if _, ok := old[p]; !ok {
			want[p] = "added"
		}
	}
	var last string
	for _, f := range got.Files {
		path := f.Path
		if f.PathBase64 != "" {
			b, err := base64.StdEncoding.DecodeString(f.PathBase64)
			if err != nil {
				t.Fatal(err)
			}
			path = string(b)
		}
		if strings.ReplaceAll(path, "/", "\x00") <= strings.ReplaceAll(last, "/", "\x00") {
			t.Errorf("%s: %q after %q", what, path, last)
		}
		last = path
		key := base64.StdEncoding.EncodeToString([]byte(path))
		if want[key] != f.Change {
			t.Errorf("%s: %q is %q, want %q: %+v", what, path, f.Change, want[key], f)
		}
		delete(want, key)
		for _, side := range []struct {
			node *client.DiffNode
			seen map[string]seenFile
		}{{f.Old, old}, {f.New, now}} {
			seen, ok := side.seen[key]
			if ok != (side.node != nil) {
				t.Errorf("%s: %q: %+v, want %+v", what, path, side.node, seen)
			} else if ok && (seen.Type != side.node.Type || seen.Mode != side.node.Mode || seen.UID != side.node.UID ||
				seen.GID != side.node.GID || seen.Size != side.node.Size || seen.Target != side.node.Target) {
				t.Errorf("%s: %q: %+v, want %+v", what, path, side.node, seen)
			}
		}
		var names []string
		for _, side := range []map[string]string{old[key].Xattrs, now[key].Xattrs} {
			for n := range side {
				if old[key].Xattrs[n] != now[key].Xattrs[n] && !slices.Contains(names, n) && f.Change == "changed" &&
					f.Old.Type == f.New.Type {
					names = append(names, n)
				}
			}
		}
		slices.Sort(names)
		if !slices.Equal(names, f.Xattrs) {
			t.Errorf("%s: %q has other attributes: %q, want %q", what, path, f.Xattrs, names)
		}
	}
	for p, change := range want {
		b, _ := base64.StdEncoding.DecodeString(p)
		t.Errorf("%s: %q is not listed as %s: %+v, %+v", what, b, change, old[p], now[p])
	}
	if got.Skipped != 0 || got.Omitted != 0 || got.Added+got.Changed+got.Deleted != uint64(len(got.Files)) {
		t.Errorf("%s: %d files, but %+v", what, len(got.Files), got)
	}
}

// TestDiff changes random trees in a sandbox. The daemon must report the differences that a script
// in the guest finds, although no change was synced to the disk.
func TestDiff(t *testing.T) {
	d := load(t).start(t)
	box := d.fork(t, 1)[0]
	if err := d.WriteFile(d.ctx(t, quietLimit), box.ID, "/root/differing.py", strings.NewReader(differing)); err != nil {
		t.Fatal(err)
	}
	compare := func(req client.DiffRequest) client.Diff {
		t.Helper()
		got, err := d.Diff(d.ctx(t, bakeLimit), req)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s to %s, %s: +%d ~%d -%d in %.0f ms", got.From, req.To, req.Path, got.Added, got.Changed, got.Deleted,
			got.DiffMS)
		return got
	}
	before := d.differs(t, box.ID, "make", "/root/t", "1", "300")
	d.branchOf(t, box.ID, "before", "live")
	for i := range 2 {
		now := d.differs(t, box.ID, "change", "/root/t", fmt.Sprint(10+i), "80")
		got := compare(client.DiffRequest{From: "before", To: box.ID, Path: "/root/t"})
		wantDiff(t, fmt.Sprintf("round %d", i), got, before, now)
		if got.MemoryBytes == nil || *got.MemoryBytes == 0 {
			t.Errorf("memory: %v", got.MemoryBytes)
		}
	}
	now := d.differs(t, box.ID, "list", "/root/t")
	wantDiff(t, "the other way round", compare(client.DiffRequest{From: box.ID, To: "before", Path: "/root/t"}), now,
		before)

	// Compare the whole disk: the tree and the script have been added. Programs in the guest may
	// have changed other files.
	all := compare(client.DiffRequest{To: box.ID})
	if all.From != tag {
		t.Errorf("compared with %q, want %q", all.From, tag)
	}
	added := map[string]bool{}
	for _, f := range all.Files {
		added[f.Path] = f.Change == "added"
	}
	if !added["/root/t"] || !added["/root/differing.py"] {
		t.Errorf("%+v", all)
	}

	// Compare a disk-only branch, and then the sandbox while it is paused and while it is suspended.
	if _, err := d.Branch(d.ctx(t, bakeLimit), box.ID, client.BranchRequest{Tag: "after", DiskOnly: true}); err != nil {
		t.Fatal(err)
	}
	got := compare(client.DiffRequest{From: "before", To: "after", Path: "/root/t"})
	wantDiff(t, "two branches", got, before, now)
	if got.MemoryBytes != nil {
		t.Errorf("memory of a disk: %d", *got.MemoryBytes)
	}
	if _, err := d.Pause(d.ctx(t, quietLimit), box.ID); err != nil {
		t.Fatal(err)
	}
	wantDiff(t, "paused", compare(client.DiffRequest{From: "before", To: box.ID, Path: "/root/t"}), before, now)
	if _, err := d.Suspend(d.ctx(t, bakeLimit), box.ID); err != nil {
		t.Fatal(err)
	}
	wantDiff(t, "suspended", compare(client.DiffRequest{From: "before", To: box.ID, Path: "/root/t"}), before, now)
	if s, err := d.Sandbox(d.ctx(t, quietLimit), box.ID); err != nil || s.State != "suspended" {
		t.Errorf("%+v, %v", s, err)
	}

	_, err := d.Diff(d.ctx(t, bakeLimit), client.DiffRequest{From: "before", To: "after", Path: "/root/none"})
	wantError(t, "a missing path", err, 400, "path", "neither side has it")
	d.only(t, box)
	list, err := d.Snapshots(d.ctx(t, quietLimit))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if s.Tag != tag && s.Tag != "before" && s.Tag != "after" && !strings.HasPrefix(s.Tag, "suspended-") {
			t.Errorf("snapshot %s is left", s.Tag)
		}
	}
	for _, made := range []string{"after", "before"} { // later tests of this daemon count snapshots
		if err := d.DeleteSnapshot(d.ctx(t, quietLimit), made, client.DeleteOptions{Force: true}); err != nil {
			t.Error(err)
		}
	}
}

// TestDiffOfOthers requests comparisons as two clients. Snapshots and sandboxes of one client do
// not exist for the other client.
func TestDiffOfOthers(t *testing.T) {
	file, text := filepath.Join(t.TempDir(), "tokens"), []byte(nil)
	tokens := map[string]string{}
	for _, name := range []string{"a", "b"} {
		var err error
		text, tokens[name], err = auth.Add(text, auth.Token{Name: name, Scope: auth.Run, Prefix: owner.Prefix(name + "/")},
			false)
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	d := load(t).start(t, withArgs("--token-file", file))
	clients, boxes := map[string]*client.Client{}, map[string]client.Sandbox{}
	for name, token := range tokens {
		cl, err := client.New(d.url, token)
		if err != nil {
			t.Fatal(err)
		}
		f, err := cl.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: tag, N: 1})
		if err != nil {
			t.Fatal(err)
		}
		clients[name], boxes[name] = cl, f.Sandboxes[0]
		if _, err := cl.Branch(d.ctx(t, bakeLimit), boxes[name].ID, client.BranchRequest{Tag: name + ".x"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, pair := range [][2]string{{"a.x", "b.x"}, {"b.x", "a.x"}, {tag, "b.x"}, {"a.x", boxes["b"].ID}, {"",
		boxes["b"].ID}} {
		_, err := clients["a"].Diff(d.ctx(t, bakeLimit), client.DiffRequest{From: pair[0], To: pair[1]})
		wantError(t, fmt.Sprintf("%q", pair), err, 404)
		_, err = clients["a"].Export(d.ctx(t, bakeLimit), client.ExportRequest{From: pair[0], To: pair[1]})
		wantError(t, fmt.Sprintf("export of %q", pair), err, 404)
	}
	d.sh(t, boxes["a"].ID, "echo mine >/root/mine")
	got, err := clients["a"].Diff(d.ctx(t, bakeLimit), client.DiffRequest{To: boxes["a"].ID, Path: "/root"})
	if err != nil || len(got.Files) != 1 || !strings.HasSuffix(got.Files[0].Patch, "+mine\n") {
		t.Errorf("%+v, %v", got, err)
	}
	d.kill(t, boxes["a"], boxes["b"])
	d.removeBranches(t)
}

// TestDiffOfAHostileGuest overwrites parts of a sandbox's file system with random data, through the device
// of the disk. The minimal kernel refuses such writes while the disk is mounted.
func TestDiffOfAHostileGuest(t *testing.T) {
	d := loadDistribution(t).start(t)
	box := d.fork(t, 1)[0]
	d.sh(t, box.ID, "mkdir /root/t; for i in $(seq 500); do echo $i >/root/t/$i; done; sync")
	for _, write := range []string{
		"seek=300 count=2000", // inodes and directories
		"seek=0 count=1",      // the super block
	} {
		d.sh(t, box.ID, "dd if=/dev/urandom of=/dev/vda bs=4096 conv=notrunc status=none "+write)
		got, err := d.Diff(d.ctx(t, bakeLimit), client.DiffRequest{To: box.ID})
		t.Logf("%s: %d files, %d skipped, %v", write, len(got.Files), got.Skipped, err)
		if err != nil && client.IsStatus(err, 500) {
			t.Errorf("%s: %v", write, err)
		}
		archive, err := d.Export(d.ctx(t, bakeLimit), client.ExportRequest{To: box.ID, Partial: true})
		if err != nil {
			if t.Logf("%s: export: %v", write, err); client.IsStatus(err, 500) {
				t.Errorf("%s: %v", write, err)
			}
			continue
		}
		n, err := io.Copy(io.Discard, archive)
		archive.Close()
		t.Logf("%s: an archive of %d bytes, %v", write, n, err)
	}
	other := d.fork(t, 1)[0]
	d.sh(t, other.ID, "echo x >/root/x")
	if got, err := d.Diff(d.ctx(t, bakeLimit), client.DiffRequest{To: other.ID, Path: "/root/x"}); err != nil ||
		len(got.Files) != 1 {
		t.Errorf("the daemon does not compare any more: %+v, %v", got, err)
	}
	d.kill(t, box, other)
}

// TestDaemonCrashWhileComparing kills the daemon at several moments of a comparison. The next daemon removes
// the snapshots and children of the comparison.
func TestDaemonCrashWhileComparing(t *testing.T) {
	d := load(t).start(t)
	box := d.fork(t, 1)[0]
	d.branchOf(t, box.ID, "before", "live")
	for _, after := range []time.Duration{500 * time.Millisecond, 2 * time.Second, 5 * time.Second} {
		ended := make(chan error, 1)
		ctx := d.ctx(t, bakeLimit)
		go func() {
			_, err := d.Diff(ctx, client.DiffRequest{From: "before", To: box.ID})
			ended <- err
		}()
		time.Sleep(after)
		d.crash(t)
		if err := <-ended; err == nil {
			t.Logf("after %v the comparison had ended", after)
		}
		d.launch(t)
		d.only(t, box)
		list, err := d.Snapshots(d.ctx(t, quietLimit))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			if s.Tag != tag && s.Tag != "before" {
				t.Errorf("after %v, snapshot %s is left: %+v", after, s.Tag, s)
			}
		}
	}
	d.alive(t, box.ID)
	d.kill(t, box)
	d.removeBranches(t)
}
