package hub

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/sigstore"
)

// attach adds a signature to a snapshot.
func (h *host) attach(t *testing.T, tag string) {
	t.Helper()
	a, err := h.Describe(t.Context(), "ann", tag)
	if err != nil {
		t.Fatal(err)
	}
	key, err := sigstore.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := sigstore.Sign(key, a.Digest().String())
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := json.Marshal(oci.Manifest{ArtifactType: sigstore.BundleType, Config: oci.DescriptorEmptyJSON,
		Subject: &oci.Descriptor{Digest: a.Digest()},
		Layers:  []oci.Descriptor{{MediaType: sigstore.BundleType, Digest: digest.FromBytes(bundle)}}})
	if err != nil {
		t.Fatal(err)
	}
	err = h.Attach(t.Context(), "ann", tag, manifest, func(d digest.Digest) []byte {
		if d == digest.FromBytes(bundle) {
			return bundle
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The signatures of a snapshot survive a restart, and are removed with the snapshot: at its
// deletion, or at the next start. Damaged files are omitted.
func TestAttachedSignatures(t *testing.T) {
	a := newHost(t)
	has := func(tag string, want int, when string) {
		t.Helper()
		if list, err := a.Attached(tag); err != nil || len(list) != want {
			t.Errorf("%s: %d signatures, want %d: %v", when, len(list), want, err)
		}
	}
	left := func(want int, when string) {
		t.Helper()
		if dirs, err := os.ReadDir(a.cache.path("signed", "")); err != nil || len(dirs) != want {
			t.Errorf("%s: %d directories, want %d: %v", when, len(dirs), want, err)
		}
	}
	a.make(t, "one", "", 2, 'p')
	a.make(t, "two", "", 3, 'q')
	has("one", 0, "new")
	a.attach(t, "one")
	a.attach(t, "two")
	has("one", 1, "signed")
	a.store.Close()
	a.open(t)
	has("one", 1, "after a restart")
	id, _, err := a.store.Version("one")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"x": "{", digest.FromString("y").Encoded(): `{"manifest":"eA=="}`} {
		if err := os.WriteFile(filepath.Join(a.cache.attachedTo(id), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	has("one", 1, "with damaged files")
	if _, err := a.store.Delete("one", store.DeleteSingle); err != nil {
		t.Fatal(err)
	}
	left(1, "after a deletion")
	a.store.Close()
	if a.store, err = store.Open(store.Config{Root: a.root, RAM: a.ram}); err != nil { // without a hub
		t.Fatal(err)
	}
	if _, err := a.store.Delete("two", store.DeleteSingle); err != nil {
		t.Fatal(err)
	}
	a.store.Close()
	a.open(t)
	left(0, "after the next start")
}
