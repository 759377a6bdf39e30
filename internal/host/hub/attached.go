package hub

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/sigstore"
)

// MaxSignatureManifest is the maximum size, in bytes, of the manifest of a signature. The
// configuration of a signature has the same maximum.
const MaxSignatureManifest = maxReferrer

// Attached is a signature that a client has attached to a snapshot of this daemon. Other daemons get it with the
// snapshot.
type Attached struct {
	Manifest []byte `json:"manifest"` // OCI manifest, with the artifact of the snapshot as its subject
	Config   []byte `json:"config"`
	Bundle   []byte `json:"bundle"`
}

// Digest returns the digest of the manifest.
func (a *Attached) Digest() digest.Digest { return digest.FromBytes(a.Manifest) }

// Blob returns the blob of the signature with the given digest, or nil.
func (a *Attached) Blob(d digest.Digest) []byte {
	for _, p := range [][]byte{a.Config, a.Bundle} {
		if digest.FromBytes(p) == d {
			return p
		}
	}
	return nil
}

// attachedTo returns the directory of the signatures of a snapshot: <dir>/signed/<ID>. The name of a file in it is the
// hexadecimal digest of the signature's manifest.
func (c *cache) attachedTo(id string) string { return c.path("signed", id) }

// Attach adds a signature to a snapshot. The manifest of the signature names blobs. To get them,
// Attach calls blob(digest), which returns nil if the blob is missing. Attach verifies no
// signature, because it knows no key. If the signature cannot be used, the error is a
// *sigstore.InvalidError.
func (h *Hub) Attach(ctx context.Context, who, tag string, manifest []byte, blob func(digest.Digest) []byte) error {
	a, id, err := h.describe(ctx, who, tag)
	if err != nil {
		return err
	}
	var m oci.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil || len(manifest) > maxReferrer {
		return unusable("its manifest cannot be read")
	}
	if m.ArtifactType != sigstore.BundleType || len(m.Layers) != 1 || m.Layers[0].MediaType != sigstore.BundleType {
		return unusable("the manifest is not that of a signature, with one bundle: a daemon accepts only signatures")
	}
	if m.Subject == nil || m.Subject.Digest != a.Digest() {
		return unusable("its subject is not the snapshot's artifact, %s", a.Digest())
	}
	s := Attached{Manifest: manifest, Config: blob(m.Config.Digest), Bundle: blob(m.Layers[0].Digest)}
	if m.Config.Digest == oci.DescriptorEmptyJSON.Digest {
		s.Config = oci.DescriptorEmptyJSON.Data
	}
	if s.Config == nil || s.Bundle == nil {
		return unusable("its blobs were not uploaded before its manifest")
	}
	if err := sigstore.CheckSubject(s.Bundle, a.Digest().String()); err != nil {
		return err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	h.attaching.Lock()
	defer h.attaching.Unlock()
	dir := h.cache.attachedTo(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(dir, s.Digest().Encoded())
	present, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && len(present) >= maxBundles {
		return unusable("the snapshot has %d signatures, the most that a pull accepts", len(present))
	}
	err = atomicfile.Write(path, text, 0o600)
	if !h.cfg.Store.Has(tag, id) { // the snapshot has been deleted since
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// maxAttached is the maximum size, in bytes, of a file with an Attached. JSON encodes bytes in
// base64, which adds a third.
const maxAttached = 2 * (2*maxReferrer + sigstore.MaxBundle)

// Attached returns the signatures of a snapshot. It omits damaged files.
func (h *Hub) Attached(tag string) (list []Attached, err error) {
	id, _, err := h.cfg.Store.Version(tag)
	if err != nil {
		return nil, err
	}
	files, err := os.ReadDir(h.cache.attachedTo(id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, f := range files {
		path := filepath.Join(h.cache.attachedTo(id), f.Name())
		if info, err := f.Info(); err != nil || info.Size() > maxAttached {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the snapshot has been deleted since
		}
		var s Attached
		if json.Unmarshal(text, &s) == nil && s.Digest().Encoded() == f.Name() {
			list = append(list, s)
		}
	}
	return list, nil
}

// detachOthers removes the signatures and the origins of snapshots that no longer exist.
func (h *Hub) detachOthers() error {
	signed, err := os.ReadDir(h.cache.path("signed", ""))
	pulled, err2 := os.ReadDir(h.cache.path("pulled", ""))
	if err = errors.Join(err, err2); err != nil {
		return err
	}
	var ids []string
	for _, i := range h.cfg.Store.List() {
		if id, _, err := h.cfg.Store.Version(i.Tag); err == nil {
			ids = append(ids, id)
		} else if i.Damage != "" {
			return nil // a damaged snapshot may have signatures, and needs them after its repair
		}
	}
	err = h.hot.Retain(ids)
	for _, d := range signed {
		if !slices.Contains(ids, d.Name()) {
			err = errors.Join(err, os.RemoveAll(h.cache.attachedTo(d.Name())))
		}
	}
	for _, f := range pulled {
		if !slices.Contains(ids, f.Name()) {
			err = errors.Join(err, h.cache.forgetPulled(f.Name()))
		}
	}
	return err
}
