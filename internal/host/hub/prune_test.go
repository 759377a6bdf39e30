package hub

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/artifact"
)

// The blobs of a packed snapshot and of an interrupted pull are listed with their sizes. A dry run removes none of
// them. Afterwards, the snapshot can be packed again, and the pull fetches its blobs again.
func TestPruneTheCache(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	sent := a.push(t, "parent", s.host+"/team/py:1")
	state := stateOf(sent.Artifact)
	ref := remoteOf(t, s.host+"/team/py:1")
	b.tries = 1
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if strings.Contains(r.URL.Path, baseOf(sent.Artifact).Digest.Encoded()) {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		inner.ServeHTTP(w, r)
	})
	if _, err := b.Pull(t.Context(), "ann", "", ref, ignore); err == nil {
		t.Fatal("the pull was not interrupted")
	}
	s.set(nil)
	old, fresh := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	unfinished := filepath.Join(b.root, "hub", "blobs", tmpPrefix+"x")
	if err := os.WriteFile(unfinished, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(unfinished, old, old); err != nil {
		t.Fatal(err)
	}
	for _, h := range []*host{a, b} {
		all, err := h.Cached()
		if err != nil || len(all) == 0 {
			t.Fatalf("%+v, %v", all, err)
		}
		for _, c := range all {
			st, err := os.Stat(c.Path)
			if err != nil || st.Size() != c.Bytes || (c.File == "") != (h == b) {
				t.Errorf("%+v, %v", c, err)
			}
		}
		i := slices.IndexFunc(all, func(c CachedBlob) bool { return filepath.Base(c.Path) == state.Digest.Encoded() })
		if i < 0 || all[i].Bytes != state.Size || h == a && all[i].File != artifact.StatePart {
			t.Fatalf("the saved state is not among %+v", all)
		}
		if err := os.Chtimes(all[i].Path, old, old); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			before        time.Time
			dry           bool
			removed, left int
		}{
			{old.Add(-time.Minute), false, 0, len(all)},
			{old.Add(time.Minute), true, 1, len(all)},
			{old.Add(time.Minute), false, 1, len(all) - 1},
			{fresh, true, len(all) - 1, len(all) - 1},
			{fresh, false, len(all) - 1, 0},
			{fresh, false, 0, 0},
		} {
			removed, err := h.Prune(c.before, c.dry)
			left, failed := h.Cached()
			if err != nil || failed != nil || len(removed) != c.removed || len(left) != c.left {
				t.Errorf("%+v: %+v, %v, left %+v, %v", c, removed, err, left, failed)
			}
		}
	}
	if _, err := os.Stat(unfinished); err != nil {
		t.Error(err) // another request may be writing it
	}
	if again := a.push(t, "parent", s.host+"/other/py:1"); again.Digest() != sent.Digest() {
		t.Errorf("packed again as %s, not %s", again.Digest(), sent.Digest())
	}
	b.pull(t, "", s.host+"/team/py:1")
	b.check(t, "parent", map[int64]byte{2: 'p'})
}
