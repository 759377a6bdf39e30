package hub

import (
	"bytes"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/host/store"
)

// idOf returns the ID of a snapshot.
func (h *host) idOf(t *testing.T, tag string) string {
	t.Helper()
	id, _, err := h.store.Version(tag)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// archiveWith returns the archive of a snapshot, with the given list of hot frames.
func (h *host) archiveWith(t *testing.T, tag string, list []byte) []byte {
	t.Helper()
	p, err := h.Pack(t.Context(), "ann", tag)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var out bytes.Buffer
	err = artifact.WriteLayout(&out, p.Artifact, tag, list, func(i int) (io.ReadCloser, error) {
		b := p.Blobs[i]
		return io.NopCloser(io.NewSectionReader(p.files[b.Digest], 0, b.Size)), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// A list of hot frames goes with a snapshot from a push into an archive, to another host, and from there
// to a registry. It is removed with the snapshot.
func TestHotFramesTravel(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serveReferrers(t), newHost(t).hasty().lazily(t).rehearsing([]int64{0}, []int64{0}), newHost(t).hasty()
	a.makeLarge(t, "py")
	sent, err := a.pushHot(t, "py", s.host+"/team/py:1")
	if err != nil || sent.Hot == 0 {
		t.Fatalf("%d hot frames, %v", sent.Hot, err)
	}
	want := a.hotOf(t, s.host+"/team/py:1", sent.Digest())
	if err := b.unpack(t, "py", a.pack(t, "py")); err != nil {
		t.Fatal(err)
	}
	again := b.push(t, "py", s.host+"/other/py:1") // does not record frames
	if got := b.hotOf(t, s.host+"/other/py:1", again.Digest()); len(want) == 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	described, err := b.Describe(t.Context(), "ann", "py")
	if err != nil {
		t.Fatal(err)
	}
	hot := b.Hot(described)
	if hot == nil || !bytes.Contains(hot.Manifest, []byte(described.Digest())) {
		t.Fatalf("for other daemons: %+v", hot)
	}
	if list, err := artifact.ParseHot(hot.Bundle); err != nil || !reflect.DeepEqual(list, want) {
		t.Errorf("for other daemons: %v, %v", list, err)
	}
	id := b.idOf(t, "py")
	if _, err := b.store.Delete("py", store.DeleteForce); err != nil || b.hot.Of(id) != nil {
		t.Errorf("after the deletion: %q, %v", b.hot.Of(id), err)
	}
	orphan := b.cache.path("hot", "orphan") // as a killed daemon leaves it
	if err := os.WriteFile(orphan, hot.Bundle, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.detachOthers(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(orphan); !os.IsNotExist(err) {
		t.Errorf("an orphan: %v", err)
	}
}

// If the list in an archive is damaged or too long, the list is ignored.
func TestHostileHotListsInArchives(t *testing.T) {
	a := newHost(t)
	a.makeLarge(t, "py")
	for name, text := range map[string]string{
		"no JSON":    "hot",
		"not sorted": `{"blobs":{"` + digest.FromString("x").String() + `":[[9,10],[0,1]]}}`,
		"huge":       strings.Repeat(" ", artifact.MaxHot+1),
	} {
		b := newHost(t)
		if err := b.unpack(t, "py", a.archiveWith(t, "py", []byte(text))); err != nil {
			t.Fatal(err)
		}
		if got := b.hot.Of(b.idOf(t, "py")); got != nil {
			t.Errorf("%s: the list %.50q was kept", name, got)
		}
		b.leavesNothing(t, name, 1)
	}
}
