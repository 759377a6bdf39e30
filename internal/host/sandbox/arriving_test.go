package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/feeder"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// copied has the small files of a snapshot. The large ones never arrive.
type copied struct{ dir string }

func (c copied) Decode(_ context.Context, part int, write func(uint64, []byte) error) error {
	name := []string{snapshot.StateFile, snapshot.MemoryMapFile}[part]
	p, err := os.ReadFile(filepath.Join(c.dir, name))
	if err == nil {
		err = write(0, p)
	}
	return err
}

// arrive makes a copy of the snapshot "p" with the given tag. The copy is still arriving.
func (w *world) arrive(t *testing.T, tag string) *store.Staging {
	t.Helper()
	s := w.Snapshots()
	if err := s.Verify(t.Context(), "p"); err != nil { // computes the digests
		t.Fatal(err)
	}
	lease, err := s.Acquire("p")
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	m := artifact.Portable(lease.Manifest())
	files := map[string]*os.File{artifact.MemoryPart + "0": lease.Layers()[0], artifact.DiskPart + "0": lease.Disk()[1]}
	g, err := s.Stage(tag)
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.Arrive(t.Context(), m, copied{filepath.Join(w.dir, "state", "snapshots", "p")},
		feeder.NewArrival(func() {}),
		func(part int) (*os.File, error) {
			return disklayer.Reopen(files[artifact.Parts(m)[part].Name])
		}, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// A snapshot that is still arriving can be forked, but it cannot be deleted, and its sandboxes
// cannot be branched. If the rest of the snapshot is lost, the sandboxes exit, and their ExitDetail
// is the reason.
func TestForksOfArrivingSnapshots(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	g := w.arrive(t, "soon")
	r, err := w.Fork(t.Context(), ForkRequest{Tag: "soon", N: 2})
	if err != nil {
		t.Fatal(err)
	}
	id := r.Sandboxes[0].ID
	arriving := (*store.ArrivingError)(nil)
	if _, err := w.Branch(t.Context(), id, BranchRequest{Tag: "b", Mode: vm.BranchLive}); !errors.As(err, &arriving) {
		t.Errorf("a branch: %v", err)
	}
	if _, err := w.Snapshots().Delete("soon", store.DeleteForce); !errors.As(err, new(*store.InUseError)) {
		t.Errorf("a deletion: %v", err)
	}
	g.Lose(errors.New("the registry is gone"))
	for _, s := range r.Sandboxes {
		if i := waitState(t, w, s.ID, Exited); i.ExitDetail != "the registry is gone" {
			t.Errorf("its exit: %s, %s", i.ExitReason, i.ExitDetail)
		}
	}
	w.KillAll()
	w.checkClean(t)
}
