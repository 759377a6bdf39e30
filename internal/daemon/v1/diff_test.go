package v1_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/proto/diffproto"
)

// box makes a snapshot and a sandbox.
func box(t *testing.T, r *apirig.Rig) client.Sandbox {
	t.Helper()
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	f, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1})
	if err != nil {
		t.Fatal(err)
	}
	return f.Sandboxes[0]
}

func TestDiff(t *testing.T) {
	odd := &diffproto.Entry{Path: "/\xff\n", New: diffproto.Node{Type: diffproto.Symlink, Mode: 0o777, Target: "\xfe",
		Size: 1},
		Content: true}
	text := &diffproto.Entry{Path: "/srv/a", Old: diffproto.Node{Type: diffproto.Regular, Mode: 0o644, UID: 1, GID: 2,
		Size: 3},
		New: diffproto.Node{Type: diffproto.Regular, Mode: 0o755, Size: 4}, Content: true, Xattrs: []string{"user.\xff"},
		LinesAdded: 1, LinesDeleted: 1, Patch: []byte("@@ -1 +1 @@\n-old\n+new\n")}
	gone := &diffproto.Entry{Path: "/srv/b", Old: diffproto.Node{Type: diffproto.FIFO, Mode: 0o600}, Content: true}
	large := &diffproto.Entry{Path: "/srv/c", New: diffproto.Node{Type: diffproto.Regular, Size: 1 << 40}, Content: true,
		Omitted: diffproto.Large}
	r := start(t, apirig.Options{Diff: vmfake.Differs(text, gone, large, odd)})
	s := box(t, r)
	d, err := r.Diff(t.Context(), client.DiffRequest{To: s.ID})
	if err != nil {
		t.Fatal(err)
	}
	if d.From != r.Parent.Tag || d.To != s.ID || len(d.Files) != 4 || d.Changed != 4 || d.LinesAdded != 1 ||
		d.LinesDeleted != 1 ||
		d.MemoryBytes == nil || *d.MemoryBytes < 8192 || d.Omitted != 0 {
		t.Errorf("%+v", d)
	}
	var got []string
	for _, f := range d.Files {
		got = append(got, fmt.Sprintf("%s %q %s %+v %+v %t %q %s %q", f.Change, f.Path, f.PathBase64, f.Old, f.New, f.Content,
			f.Xattrs, f.PatchOmitted, f.Patch))
	}
	want := `changed "/srv/a"  &{Type:file Mode:420 UID:1 GID:2 Size:3 Target:} &{Type:file Mode:493 UID:0 GID:0 Size:4 Target:} true ["user.�"]  "diff --git a/srv/a b/srv/a\nold mode 100644\nnew mode 100755\n--- a/srv/a\n+++ b/srv/a\n@@ -1 +1 @@\n-old\n+new\n"
deleted "/srv/b"  &{Type:fifo Mode:384 UID:0 GID:0 Size:0 Target:} <nil> true []  ""
added "/srv/c"  <nil> &{Type:file Mode:0 UID:0 GID:0 Size:1099511627776 Target:} true [] large "diff --git a/srv/c b/srv/c\nnew file mode 100644\nBinary files /dev/null and b/srv/c differ\n"
added "/�\n" L/8K <nil> &{Type:symlink Mode:511 UID:0 GID:0 Size:1 Target:�} true []  "diff --git \"a/\\377\\012\" \"b/\\377\\012\"\nnew file mode 120000\n--- /dev/null\n+++ \"b/\\377\\012\"\n@@ -0,0 +1 @@\n+�\n\\ No newline at end of file\n"`
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	d, err = r.Diff(t.Context(), client.DiffRequest{From: s.ID, To: r.Parent.Tag, Path: "/srv/", MaxFiles: new(2)})
	if err != nil || len(d.Files) != 2 || d.Omitted != 1 || d.From != s.ID {
		t.Errorf("%+v, %v", d, err)
	}
	for field, req := range map[string]client.DiffRequest{
		"to":              {From: r.Parent.Tag},
		"from":            {To: r.Parent.Tag},
		"path":            {To: s.ID, Path: "srv"},
		"max_files":       {To: s.ID, MaxFiles: new(20_001)},
		"max_patch_bytes": {To: s.ID, MaxPatchBytes: new(-1)},
	} {
		_, err := r.Diff(t.Context(), req)
		var problem *client.Error
		if !errors.As(err, &problem) || problem.Status != http.StatusBadRequest || problem.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := r.Diff(t.Context(), client.DiffRequest{From: "../etc", To: s.ID}); !client.IsStatus(err,
		http.StatusBadRequest) {
		t.Errorf("%v", err)
	}
	if _, err := r.Diff(t.Context(), client.DiffRequest{From: "none", To: s.ID}); !client.IsStatus(err,
		http.StatusNotFound) {
		t.Errorf("%v", err)
	}
	left(t, r, 1, 1)
}

// left checks how many snapshots and sandboxes exist, and that no VM of a comparison runs.
func left(t *testing.T, r *apirig.Rig, snapshots, sandboxes int) {
	t.Helper()
	r.Store.Quiesce()
	list, err := r.Snapshots(t.Context())
	boxes, err2 := r.Sandboxes(t.Context())
	if err := errors.Join(err, err2); err != nil || len(list) != snapshots || len(boxes) != sandboxes ||
		r.Differs.Count() != 0 {
		t.Errorf("%d snapshots, %d sandboxes and %d VMs are left, %v", len(list), len(boxes), r.Differs.Count(), err)
	}
}

// An archive from another host determines the initramfs of its snapshot. A large initramfs is
// refused before it takes memory.
func TestDiffOfALargeInitramfs(t *testing.T) {
	r := start(t, apirig.Options{})
	r.Parent.Initrd = filepath.Join(t.TempDir(), "initrd")
	err := errors.Join(os.WriteFile(r.Parent.Initrd, []byte("x"), 0o600), os.Truncate(r.Parent.Initrd, 200<<20))
	if err != nil {
		t.Fatal(err)
	}
	s := box(t, r)
	_, err = r.Diff(t.Context(), client.DiffRequest{To: s.ID})
	if err == nil || !strings.Contains(err.Error(), "the initramfs of its snapshot has 200 MiB") {
		t.Error(err)
	}
}

// If the file system of a guest is damaged, the status does not say that the daemon has failed.
func TestDiffOfDamagedDisks(t *testing.T) {
	r := start(t, apirig.Options{Diff: func(_ *vmfake.VMM, c net.Conn) {
		_ = diffproto.WriteRefused(c, errors.New("mount /dev/vdb: structure needs cleaning"))
	}})
	s := box(t, r)
	_, err := r.Diff(t.Context(), client.DiffRequest{To: s.ID})
	if !client.IsStatus(err, http.StatusBadGateway) || !strings.Contains(err.Error(), "structure needs cleaning") {
		t.Errorf("%v", err)
	}
	left(t, r, 1, 1)
}

// If the client leaves, the comparison ends.
func TestDiffEndsWithItsClient(t *testing.T) {
	began := make(chan struct{})
	r := start(t, apirig.Options{Diff: func(v *vmfake.VMM, _ net.Conn) {
		close(began)
		<-v.Done()
	}})
	s := box(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := r.Diff(ctx, client.DiffRequest{To: s.ID})
		ended <- err
	}()
	<-began
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		list, err := r.Snapshots(t.Context())
		if err == nil && len(list) == 1 || time.Now().After(deadline) {
			break
		}
	}
	left(t, r, 1, 1)
}

// A diff requires the scope run, because it returns the content of guests' files.
func TestDiffNeedsRun(t *testing.T) {
	r := start(t, apirig.Options{Tokens: []auth.Token{{Name: "r", Scope: auth.Read}, {Name: "u", Scope: auth.Run}}})
	s := box(t, r)
	for name, want := range map[string]int{"r": http.StatusForbidden, "u": 0} {
		cl, err := client.New(r.URL, r.Tokens[name])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cl.Diff(t.Context(), client.DiffRequest{To: s.ID}); want == 0 && err != nil ||
			want != 0 && !client.IsStatus(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The targets of links and the names of attributes count against the memory of a request. What
// counts is their length in JSON.
func TestDiffsAreCounted(t *testing.T) {
	const files, memory = 200, 8 << 20
	long := strings.Repeat("\x01", diffproto.MaxPath)
	link := diffproto.Node{Type: diffproto.Symlink, Mode: 0o777, Target: long}
	named := diffproto.Node{Type: diffproto.Regular}
	for kind, e := range map[string]diffproto.Entry{
		"target": {New: link, Content: true},
		"names":  {Old: named, New: named, Xattrs: slices.Repeat([]string{long[:255]}, 16)},
	} {
		var entries []*diffproto.Entry
		for i := range files {
			one := e
			one.Path = fmt.Sprintf("/%03d", i)
			entries = append(entries, &one)
		}
		// The JSON itself is smaller than 5 MiB.
		r := start(t, apirig.Options{Diff: vmfake.Differs(entries...), Limits: face.Limits{Memory: memory}})
		s := box(t, r)
		_, err := r.Diff(t.Context(), client.DiffRequest{To: s.ID, Patch: new(false)})
		if !client.IsStatus(err, http.StatusServiceUnavailable) || !strings.Contains(err.Error(), "memory") {
			t.Errorf("%s: %v", kind, err)
		}
		if _, err := r.Diff(t.Context(), client.DiffRequest{To: s.ID, Patch: new(false), MaxFiles: new(20)}); err != nil {
			t.Errorf("%s of a few files: %v", kind, err)
		}
	}
}
