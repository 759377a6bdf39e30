package v1_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
)

// TestNewSnapshotsAreEncrypted bakes, builds and suspends over the API. The snapshots are encrypted
// from the beginning, and a sandbox of an unencrypted snapshot gets an encrypted suspended state.
func TestNewSnapshotsAreEncrypted(t *testing.T) {
	r, _ := builder(t)
	ctx := t.Context()
	hasOnlyEncrypted := func(tag string, inClear int) {
		t.Helper()
		s, err := r.Snapshot(ctx, tag)
		if err != nil || !s.Encrypted {
			t.Fatalf("%s: %+v, %v", tag, s, err)
		}
		files, err := os.ReadDir(s.Dir)
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, f := range files {
			n := f.Name()
			if !strings.HasSuffix(n, ".enc") && n != "encryption.json" && !strings.Contains(n, "manifest.json") {
				found = append(found, n)
			}
		}
		if len(found) != inClear {
			t.Errorf("%s has %q in clear", tag, found)
		}
	}
	bake := r.Parent
	bake.Tag, bake.Encrypt = "baked", true
	if b, err := r.Bake(ctx, bake); err != nil || !b.Encrypted {
		t.Fatalf("%+v, %v", b, err)
	}
	hasOnlyEncrypted("baked", 0)
	f, err := r.Fork(ctx, client.ForkRequest{SnapshotTag: "baked", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	useSandbox(t, r.Client, f.Sandboxes[0].ID)

	ask := client.BuildRequest{Tag: "made", Replace: true, Dockerfile: "FROM a.b\nRUN true\n"}
	for _, encrypt := range []bool{false, true, true} { // an unencrypted result is not taken for an encrypted one
		ask.Encrypt = encrypt
		if _, _, err := built(t, r.Client, ask, nil); err != nil {
			t.Fatal(err)
		}
		if s, err := r.Snapshot(ctx, "made"); err != nil || s.Encrypted != encrypt {
			t.Errorf("%+v, %v", s, err)
		}
	}

	if f, err = r.Fork(ctx, client.ForkRequest{SnapshotTag: "a.b", N: 1}); err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	if _, err := r.SuspendWith(ctx, id, client.SuspendRequest{Encrypt: true}); err != nil {
		t.Fatal(err)
	}
	list, err := r.Snapshots(ctx)
	if err != nil {
		t.Fatal(err)
	}
	n := slices.IndexFunc(list, func(s client.Snapshot) bool { return strings.HasPrefix(s.Tag, "suspended-"+id) })
	if n < 0 {
		t.Fatalf("no suspended state in %+v", list)
	}
	hasOnlyEncrypted(list[n].Tag, 2) // the layers of the unencrypted snapshot
	if _, err := r.Resume(ctx, id); err != nil {
		t.Fatal(err)
	}
	useSandbox(t, r.Client, id)
	if _, err := r.Suspend(ctx, id); err != nil { // the sandbox runs from an encrypted snapshot now
		t.Fatal(err)
	}
	if list, err = r.Snapshots(ctx); err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if strings.HasPrefix(s.Tag, "suspended-") && !s.Encrypted {
			t.Errorf("%s is in clear", s.Tag)
		}
	}
}

// TestBuildWithoutKeys builds an encrypted snapshot on a daemon that has no keys. The build fails before
// its first step.
func TestBuildWithoutKeys(t *testing.T) {
	r := start(t, apirig.Options{Keyless: true})
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	_, _, err := built(t, r.Client, client.BuildRequest{Tag: "made", Encrypt: true,
		Dockerfile: "FROM a.b\nRUN true\nRUN false\n"}, nil)
	var e *client.Error
	if !errors.As(err, &e) || e.Code != string(client.ErrKeyUnavailable) {
		t.Errorf("%v, want the code %s", err, client.ErrKeyUnavailable)
	}
}

// TestEncryption encrypts, forks, decrypts and shreds a snapshot over the API.
func TestEncryption(t *testing.T) {
	cl, _, _, bake := serve(t)
	ctx := context.Background()
	if _, err := cl.Bake(ctx, bake); err != nil {
		t.Fatal(err)
	}
	code := func(what string, err error, want client.ErrorCode) {
		t.Helper()
		if e := (*client.Error)(nil); !errors.As(err, &e) || e.Code != string(want) {
			t.Errorf("%s: %v, want %s", what, err, want)
		}
	}
	_, err := cl.ShredSnapshot(ctx, "a.b")
	code("shred of a snapshot in clear", err, client.ErrSnapshotEncryption)
	_, err = cl.EncryptSnapshot(ctx, "none")
	code("no snapshot", err, client.ErrSnapshotNotFound)
	for _, call := range []struct {
		do        func(context.Context, string) (client.Family, error)
		encrypted bool
	}{{cl.EncryptSnapshot, true}, {cl.DecryptSnapshot, false}, {cl.EncryptSnapshot, true}} {
		if f, err := call.do(ctx, "a.b"); err != nil || !slices.Equal(f.Tags, []string{"a.b"}) || len(f.InClear) > 0 {
			t.Fatalf("%+v, %v", f, err)
		}
		if d, err := cl.Snapshot(ctx, "a.b"); err != nil || d.Encrypted != call.encrypted || d.MemoryPhysical == 0 {
			t.Errorf("%+v, %v", d, err)
		}
	}
	if f, err := cl.EncryptSnapshot(ctx, "a.b"); err != nil || len(f.Tags) > 0 {
		t.Errorf("a second encryption: %+v, %v", f, err)
	}
	f, err := cl.Fork(ctx, client.ForkRequest{SnapshotTag: "a.b", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	useSandbox(t, cl, id)
	for _, mode := range []string{"live", "diff", "full"} {
		if b, err := cl.Branch(ctx, id, client.BranchRequest{Tag: mode, Mode: mode}); err != nil || !b.Encrypted {
			t.Errorf("branch %s: %+v, %v", mode, b, err)
		}
	}
	_, err = cl.Branch(ctx, id, client.BranchRequest{Tag: "copy", DiskOnly: true})
	code("branch of the disk", err, client.ErrSnapshotEncryption)
	if _, err := cl.Suspend(ctx, id); err != nil {
		t.Error(err)
	}
	if _, err := cl.Resume(ctx, id); err != nil {
		t.Error(err)
	}
	if f, err := cl.Fork(ctx, client.ForkRequest{SourceID: id, N: 1}); err != nil {
		t.Error(err)
	} else if err := cl.Kill(ctx, f.Sandboxes[0].ID); err != nil {
		t.Error(err)
	}
	_, err = cl.PackSnapshot(ctx, "a.b")
	code("pack", err, client.ErrSnapshotEncryption)
	_, err = cl.CompactSnapshot(ctx, "a.b", "copy")
	code("compact", err, client.ErrSnapshotEncryption)
	_, err = cl.ShredSnapshot(ctx, "a.b")
	code("shred", err, client.ErrSnapshotInUse)
	if err := cl.Kill(ctx, id); err != nil {
		t.Fatal(err)
	}
	f2, err := cl.ShredSnapshot(ctx, "a.b")
	for n := 0; errors.Is(err, client.ErrSnapshotInUse) && n < 100; n++ { // Kill does not wait for the VM's files
		time.Sleep(50 * time.Millisecond)
		f2, err = cl.ShredSnapshot(ctx, "a.b")
	}
	slices.Sort(f2.Tags)
	if err != nil || !slices.Equal(f2.Tags, []string{"a.b", "diff", "full", "live"}) {
		t.Errorf("shred: %+v, %v", f2, err)
	}
	_, err = cl.Fork(ctx, client.ForkRequest{SnapshotTag: "a.b", N: 1})
	code("fork of a shredded snapshot", err, client.ErrSnapshotNotFound)
}
