package v1_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/forkd/forkd/client"
)

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
	slices.Sort(f2.Tags)
	if err != nil || !slices.Equal(f2.Tags, []string{"a.b", "diff", "full", "live"}) {
		t.Errorf("shred: %+v, %v", f2, err)
	}
	_, err = cl.Fork(ctx, client.ForkRequest{SnapshotTag: "a.b", N: 1})
	code("fork of a shredded snapshot", err, client.ErrSnapshotNotFound)
}
