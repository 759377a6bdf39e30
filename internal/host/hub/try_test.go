package hub

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/proto/vm"
)

// The saved state of a snapshot is tried on this host before any memory or disk is fetched. If the host lacks a feature
// of the CPU, the error names it.
func TestRefusedByTheCPU(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	sent := a.push(t, "parent", s.host+"/team/py:1")
	archive := a.pack(t, "parent")
	state, err := os.ReadFile(filepath.Join(a.root, "snapshots", "parent", snapshot.StateFile))
	if err != nil {
		t.Fatal(err)
	}
	want := trial{vm.Shape{MemoryBytes: memory, VCPUs: 1, Template: vm.TemplatePortable}, disk, string(state)}
	tried := func(name string, times int) {
		t.Helper()
		if len(b.tried) != times || slices.ContainsFunc(b.tried, func(x trial) bool { return x != want }) {
			t.Errorf("%s: %+v was tried, want %d times %+v", name, b.tried, times, want)
		}
		b.tried = nil
	}
	ref := remoteOf(t, s.host+"/team/py:1")
	for name, c := range map[string]struct {
		err     error
		refused bool // whether the error is about the snapshot
		want    string
	}{
		"a missing feature": {vm.WithCode(vm.ErrCPU, errors.New("it lacks avx512f")), true,
			"this host cannot run it: it lacks avx512f"},
		"an unknown state":  {vm.WithCode(vm.ErrBadState, errors.New("version 9")), true, "cannot run it: version 9"},
		"another shape":     {vm.WithCode(vm.ErrShape, errors.New("a sound card")), true, "a sound card"},
		"a failure of ours": {errors.New("no KVM"), false, "compare the saved state with this host: no KVM"},
	} {
		b.tryErr = c.err
		s.set(nil)
		_, err := b.Pull(t.Context(), "ann", "", ref, ignore)
		log, _, _ := s.set(nil)
		var bad *artifact.Error
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.As(err, &bad) != c.refused {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		for _, blob := range sent.Blobs {
			if blob.Part.Name != artifact.StatePart && slices.Contains(log, "GET /v2/team/py/blobs/"+blob.Digest.String()) {
				t.Errorf("%s: %s was fetched", name, blob.Part.Name)
			}
		}
		tried(name, 1)
		b.leavesNothing(t, name, 0)
		if c.refused {
			b.isClean(t, name, 0)
		} else {
			b.cache.remove(stateOf(sent.Artifact).Digest)
		}
		o, err := b.Find(t.Context(), "ann", ref)
		if c.refused && (err != nil || o.Problem() == nil || !strings.Contains(o.Problem().Error(), c.want)) ||
			!c.refused && err == nil {
			t.Errorf("%s: described as %+v, %v", name, o, err)
		}
		tried(name, 1)
		b.isClean(t, name, 0)
		if err := b.unpack(t, "", archive); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, from an archive: %v", name, err)
		}
		tried(name, 1)
		b.isClean(t, name, 0)
	}
	b.tryErr = nil
	if o, err := b.Find(t.Context(), "ann", ref); err != nil || o.Problem() != nil {
		t.Errorf("described as %+v, %v", o, err)
	}
	tried("a description", 1)
	b.pull(t, "", s.host+"/team/py:1")
	tried("a pull", 1)
	b.check(t, "parent", map[int64]byte{2: 'p'})

	// Find does not try the state of a snapshot that is accepted only with a warning.
	ann := newKey(t)
	c := newHost(t).hasty().trusting(t, ann)
	if o, err := c.Find(t.Context(), "ann", ref.Under(Warn)); err != nil || kindOf(o.Verdict.Problem) != Unsigned ||
		o.Problem() != nil || len(c.tried) != 0 {
		t.Errorf("described as %+v, %v, after %d trials", o, err, len(c.tried))
	}
}
