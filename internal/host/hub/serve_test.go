package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"

	"github.com/forkd/forkd/internal/format/crypt"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/host/store"
)

// read returns the content of a blob of a snapshot.
func (h *host) read(t *testing.T, tag string, d digest.Digest) []byte {
	t.Helper()
	c, err := h.OpenBlob(t.Context(), "bob", tag, d)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The artifact that a daemon serves is the artifact that it pushes. All of its blobs can be read, even after the
// cache has dropped them.
func TestServedArtifact(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a := serve(t), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	got, err := a.Describe(t.Context(), "bob", "parent")
	if err != nil {
		t.Fatal(err)
	}
	if sent := a.push(t, "parent", s.host+"/team/py:1"); sent.Digest() != got.Digest() {
		t.Errorf("served %s, pushed %s", got.Digest(), sent.Digest())
	}
	check := func(when string) {
		t.Helper()
		for _, b := range got.Blobs {
			if p := a.read(t, "parent", b.Digest); digest.FromBytes(p) != b.Digest || int64(len(p)) != b.Size {
				t.Errorf("%s: %s has %d bytes and the digest %s", when, b.Part.Name, len(p), digest.FromBytes(p))
			}
		}
	}
	check("packed")
	if err := a.cache.trim(0); err != nil {
		t.Fatal(err)
	}
	check("after the cache has dropped the blobs")
	if p := a.read(t, "parent", digest.FromBytes(got.Config)); string(p) != string(got.Config) {
		t.Error("another configuration")
	}
	if _, err := a.OpenBlob(t.Context(), "bob", "parent", digest.FromString("x")); !errors.Is(err, ErrNoBlob) {
		t.Error(err)
	}
}

// Another version of forkd may have compressed a file to a different blob. That blob is never
// served in place of the described blob. The next description names only blobs that exist.
func TestBlobOfAnotherVersion(t *testing.T) {
	a := newHost(t)
	a.make(t, "parent", "", 2, 'p')
	old, err := a.Describe(t.Context(), "bob", "parent")
	if err != nil {
		t.Fatal(err)
	}
	b := baseOf(old)
	a.cache.remove(b.Digest)
	b.Digest = digest.FromString("another version")
	if err := a.cache.remember(b); err != nil {
		t.Fatal(err)
	}
	id, _, err := a.store.Version("parent")
	if err != nil {
		t.Fatal(err)
	}
	a.packings.forget(id) // as after a restart
	if _, err := a.OpenBlob(t.Context(), "bob", "parent", b.Digest); err == nil ||
		!strings.Contains(err.Error(), "packed with other bytes") {
		t.Error(err)
	}
	if now, err := a.Describe(t.Context(), "bob", "parent"); err != nil || now.Digest() != old.Digest() {
		t.Errorf("%v, %v; want %s", now, err, old.Digest())
	}
}

// If the tag of a served snapshot is removed, or given to another snapshot, its blobs are no longer served. A blob
// that is being read stays readable.
func TestServedSnapshotIsReplaced(t *testing.T) {
	a := newHost(t)
	a.make(t, "parent", "", 2, 'p')
	old, err := a.Describe(t.Context(), "bob", "parent")
	if err != nil {
		t.Fatal(err)
	}
	layer := old.Blobs[2]
	c, err := a.OpenBlob(t.Context(), "bob", "parent", layer.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := a.store.Delete("parent", store.DeleteSingle); err != nil {
		t.Fatal(err)
	}
	if p, err := io.ReadAll(c); err != nil || digest.FromBytes(p) != layer.Digest {
		t.Errorf("the open blob has %d bytes, %v", len(p), err)
	}
	var missing *store.NotFoundError
	if _, err := a.OpenBlob(t.Context(), "bob", "parent", layer.Digest); !errors.As(err, &missing) {
		t.Error(err)
	}
	a.make(t, "parent", "", 3, 'q')
	if now, err := a.Describe(t.Context(), "bob", "parent"); err != nil || now.Digest() == old.Digest() {
		t.Errorf("the artifact of the removed snapshot, or %v", err)
	}
	if _, err := a.OpenBlob(t.Context(), "bob", "parent", layer.Digest); !errors.Is(err, ErrNoBlob) {
		t.Error(err)
	}
}

// A request does not wait for a long packing. The packing goes on, so a later request gets its result.
func TestPackingOutlivesItsRequest(t *testing.T) {
	a := newHost(t)
	a.make(t, "parent", "", 2, 'p')
	leave, err := a.wait(t.Context(), "ann")
	if err != nil {
		t.Fatal(err)
	}
	other, err := a.wait(t.Context(), "eve") // all places are taken, so the packing waits
	if err != nil {
		t.Fatal(err)
	}
	a.answerTime = 0
	for range 3 {
		if _, err := a.Describe(t.Context(), "bob", "parent"); !errors.Is(err, ErrPacking) {
			t.Fatal(err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Describe(gone, "bob", "parent"); err == nil {
		t.Error("a packing that waits has ended")
	}
	if n := len(a.packings.jobs); n != 1 {
		t.Errorf("%d packings", n)
	}
	for n := range maxWaiting { // with the packing above, the client has too many
		tag := fmt.Sprintf("more-%d", n)
		a.make(t, tag, "", 3, 'm')
		if _, err := a.Describe(t.Context(), "bob", tag); !errors.Is(err, ErrPacking) {
			t.Error(err)
		}
	}
	for waiting := 0; waiting != maxWaiting; time.Sleep(time.Millisecond) { // one packing is refused, and forgotten
		a.packings.mu.Lock()
		waiting = len(a.packings.jobs)
		a.packings.mu.Unlock()
	}
	a.answerTime = time.Hour
	a.make(t, "last", "", 4, 'l')
	if _, err := a.Describe(t.Context(), "bob", "last"); !errors.Is(err, ErrPacking) {
		t.Error(err)
	}
	leave()
	other()
	for _, p := range a.packings.jobs {
		<-p.done
	}
	a.answerTime = answerTime
	if _, err := a.Describe(t.Context(), "bob", "parent"); err != nil {
		t.Error(err)
	}
}

// Descriptions are kept in memory for a limited number of snapshots.
func TestFewDescriptionsAreKept(t *testing.T) {
	a := newHost(t)
	for i := range maxServed + 3 {
		tag := fmt.Sprintf("s%d", i)
		a.make(t, tag, "", 2, byte('a'+i))
		if _, err := a.Describe(t.Context(), "bob", tag); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(a.packings.jobs); n > maxServed {
		t.Errorf("%d descriptions are kept", n)
	}
}

// A client waits for a daemon that packs a snapshot, however often it has to ask. Other errors with the same status
// are final after a few tries.
func TestPullWaitsForPacking(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	sent := a.push(t, "parent", s.host+"/team/py:1")
	busy := func(times int, detail string) {
		left := map[string]int{"/manifests/1": times, baseOf(sent.Artifact).Digest.String(): times}
		s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for part := range left {
				if strings.Contains(r.URL.Path, part) && left[part] > 0 {
					left[part]--
					w.WriteHeader(http.StatusServiceUnavailable)
					fmt.Fprintf(w, `{"errors":[{"code":"UNAVAILABLE","message":"m","detail":%q}]}`, detail)
					return
				}
			}
			inner.ServeHTTP(w, r)
		})
	}
	b.tries = 2
	busy(9, PackingDetail)
	b.pull(t, "", s.host+"/team/py:1")
	b.check(t, "parent", map[int64]byte{2: 'p'})
	c := newHost(t).hasty()
	c.tries = 2
	for _, wrong := range []func(){
		func() { busy(9, "other") },
		func() { busy(1<<30, PackingDetail); c.patience = 0 },
	} {
		wrong()
		var failed *RegistryError
		if _, err := c.Pull(t.Context(), "ann", "", remoteOf(t, s.host+"/team/py:1"), ignore); !errors.As(err, &failed) ||
			failed.Status != http.StatusServiceUnavailable {
			t.Error(err)
		}
		c.leavesNothing(t, "a busy source", 0)
	}
}

// While a daemon packs the snapshot, all requests of a pull together wait at most as long as a
// single request is allowed to wait.
func TestPatienceOfAPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &conn{tries: 2, wait: time.Second, patience: 30 * time.Minute}
		packs := &transport.Error{StatusCode: http.StatusServiceUnavailable,
			Errors: []transport.Diagnostic{{Code: transport.UnavailableErrorCode, Detail: PackingDetail}}}
		begun := time.Now()
		err := c.again(t.Context(), func() error {
			if time.Since(begun) < 20*time.Minute {
				return packs
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.again(t.Context(), func() error { return packs }); err == nil {
			t.Error("no error")
		}
		if took := time.Since(begun); took < c.patience || took > c.patience+time.Minute {
			t.Errorf("the pull waits for %v, want %v", took, c.patience)
		}
	})
}

// Version reports that a snapshot is alone only if it has no layers of other snapshots.
func TestVersion(t *testing.T) {
	a := newHost(t)
	a.make(t, "parent", "", 2, 'p')
	a.make(t, "child", "parent", 10, 'c')
	for tag, want := range map[string]bool{"parent": true, "child": false} {
		x, err := a.store.Export(t.Context(), tag)
		if err != nil {
			t.Fatal(err)
		}
		if id, alone, err := a.store.Version(tag); err != nil || alone != want || id != x.Manifest.ID {
			t.Errorf("%s: %s, %v, %v", tag, id, alone, err)
		}
		x.Close()
	}
	g, err := a.store.Stage("new")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Discard()
	var exists *store.ExistsError
	if _, _, err := a.store.Version("new"); !errors.As(err, &exists) || !exists.InFlight {
		t.Error(err)
	}
}

// If a snapshot is encrypted after it was described, neither its configuration nor its description
// is served any more.
func TestServedSnapshotIsEncrypted(t *testing.T) {
	a := newHost(t)
	a.make(t, "parent", "", 2, 'p')
	if err := a.store.WaitFlushed(t.Context(), "parent"); err != nil {
		t.Fatal(err)
	}
	old, err := a.Describe(t.Context(), "bob", "parent")
	if err != nil {
		t.Fatal(err)
	}
	id, _, err := a.store.Version("parent")
	if err != nil {
		t.Fatal(err)
	}
	err = a.store.Rewrite("parent", id, func(from, to string) error {
		p, err := record.EncodeEncryption(&record.Encryption{SnapshotID: id, Keys: []string{crypt.NewID()}})
		if err == nil {
			err = os.CopyFS(to, os.DirFS(from))
		}
		return errors.Join(err, os.WriteFile(filepath.Join(to, store.EncryptionFile), p, 0o600))
	})
	if err != nil {
		t.Fatal(err)
	}
	var encrypted *store.EncryptedError
	if _, err := a.Describe(t.Context(), "bob", "parent"); !errors.As(err, &encrypted) {
		t.Errorf("described: %v", err)
	}
	for _, d := range []digest.Digest{digest.FromBytes(old.Config), baseOf(old).Digest} {
		if _, err := a.OpenBlob(t.Context(), "bob", "parent", d); !errors.As(err, &encrypted) {
			t.Errorf("opened %s: %v", d, err)
		}
	}
}
