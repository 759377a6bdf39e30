package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/sigstore"
)

// Bounds on the signatures of one snapshot in a registry.
const (
	maxReferrers = 1 << 20  // maximum size of the list of artifacts that refer to the snapshot, in bytes
	maxPages     = 64       // maximum number of pages of this list
	maxReferrer  = 64 << 10 // maximum size of the manifest of a signature, in bytes
	maxBundles   = 32       // maximum number of signatures
)

// Annotations of the manifest of a signature, as cosign writes them.
const (
	annotationContent   = "dev.sigstore.bundle.content"
	annotationPredicate = "dev.sigstore.bundle.predicateType"
)

// Sign adds a bundle to the signatures of a snapshot in a registry, and returns the digest of the snapshot. Sign
// checks that the bundle is for this digest. It verifies no signature, because it knows no key.
func (h *Hub) Sign(ctx context.Context, who string, r Remote, bundle []byte) (d digest.Digest, err error) {
	leave, err := h.transfers.Wait(ctx, owner.FairShare(who, maxTransfers))
	if err != nil {
		return "", err
	}
	defer leave()
	repo := r.ref.Context()
	c, err := h.dial(ctx, r, repo.Scope(transport.PushScope))
	if err != nil {
		return "", err
	}
	var manifest []byte
	if err := c.again(ctx, func() error { manifest, err = c.manifest(ctx); return err }); err != nil {
		return "", c.failed(err)
	}
	d = digest.FromBytes(manifest)
	if err := sigstore.CheckSubject(bundle, d.String()); err != nil {
		return d, invalid.Errorf("bundle", "%v; the reference has the digest %s", err, d)
	}
	subject := oci.Descriptor{MediaType: oci.MediaTypeImageManifest, Digest: d, Size: int64(len(manifest))}
	return d, c.failed(c.attach(ctx, repo, subject, bundle))
}

// attach writes a bundle as a referrer of the subject. In a registry without the API of referrers,
// go-containerregistry also adds the bundle to the index whose tag is the digest of the subject.
func (c *conn) attach(ctx context.Context, repo name.Repository, subject oci.Descriptor, bundle []byte) error {
	s, err := newReferrer(sigstore.BundleType, subject, bundle,
		map[string]string{oci.AnnotationCreated: time.Now().UTC().Format(time.RFC3339),
			annotationContent: "dsse-envelope", annotationPredicate: sigstore.PredicateType})
	if err != nil {
		return err
	}
	out, err := c.pusher()
	if err != nil {
		return err
	}
	return s.put(ctx, out, repo, s.parsed.Config.Data)
}

// referrer is an artifact in a registry that refers to a snapshot and has one file. It is a signature,
// or a list of frames, see artifact.Hot.
type referrer struct {
	text   []byte       // manifest of the artifact
	parsed oci.Manifest // decoded from text
	file   []byte       // of a signature: the bundle
}

// newReferrer returns an artifact of the given type. The file has the same type.
func newReferrer(kind string, subject oci.Descriptor, file []byte, annotations map[string]string) (referrer, error) {
	m := oci.Manifest{Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: oci.MediaTypeImageManifest, ArtifactType: kind, Config: oci.DescriptorEmptyJSON,
		Layers:  []oci.Descriptor{{MediaType: kind, Digest: digest.FromBytes(file), Size: int64(len(file))}},
		Subject: &subject, Annotations: annotations}
	text, err := json.Marshal(m)
	return referrer{text, m, file}, err
}

// put writes the artifact to a repository. The artifact's manifest names a configuration; its
// content is config.
func (s referrer) put(ctx context.Context, out *remote.Pusher, repo name.Repository, config []byte) error {
	for _, p := range [][]byte{config, s.file} { // registries do not know the type of a blob
		if err := out.Upload(ctx, repo, static.NewLayer(p, types.MediaType(s.parsed.ArtifactType))); err != nil {
			return err
		}
	}
	return out.Put(ctx, repo.Digest(digest.FromBytes(s.text).String()), manifest(s.text))
}

// Verify returns the key that has signed a snapshot in a registry: one of the given keys or, if no
// keys are given, one of the keys that the daemon trusts. If none of these keys has signed the
// snapshot, the error is a *TrustError, whatever the policy is.
func (h *Hub) Verify(ctx context.Context, who string, r Remote, keys []sigstore.TrustedKey) (
	d digest.Digest, k sigstore.TrustedKey, err error) {
	leave, err := h.transfers.Wait(ctx, owner.FairShare(who, maxTransfers))
	if err != nil {
		return d, k, err
	}
	defer leave()
	c, err := h.dial(ctx, r, r.ref.Context().Scope(transport.PullScope))
	if err != nil {
		return d, k, err
	}
	err = c.again(ctx, func() error {
		manifest, err := c.manifest(ctx)
		if err != nil {
			return err
		}
		d = digest.FromBytes(manifest)
		proofs := func() ([]proof, error) { return c.proofs(ctx, d) }
		if len(keys) == 0 {
			k, err = h.vouched(r.source(), d, proofs)
			return err
		}
		list, err := proofs()
		if err == nil {
			k, err = verify(r.source(), d, list, keys)
		}
		return err
	})
	return d, k, c.failed(err)
}

// manifest fetches the manifest of a snapshot, and compares it with the digest in the reference.
func (c *conn) manifest(ctx context.Context) ([]byte, error) {
	p, err := c.document(ctx, "manifests", c.ref.Identifier(), acceptedManifests, artifact.MaxManifest)
	if err != nil {
		return nil, err
	}
	if want, ok := c.ref.(name.Digest); ok && digest.FromBytes(p).String() != want.DigestStr() {
		return nil, &artifact.Error{Err: fmt.Errorf("registry %s: the manifest has the digest %s, not %s", c.Registry(),
			digest.FromBytes(p), want.DigestStr())}
	}
	_, err = artifact.ConfigOf(p) // refuses other artifacts
	return p, err
}

// proofsTime is the maximum time for all signatures of a snapshot. Each document has a minimum pace
// of its own, but a hostile registry could otherwise take hours for many slow documents.
const proofsTime = 5 * time.Minute

// proofs fetches the bundles for a digest. An unusable bundle is not an error. proofs returns an
// error only if the registry fails, or takes longer than proofsTime.
func (c *conn) proofs(ctx context.Context, d digest.Digest) (list []proof, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.proofsTime, errSlowProofs)
	defer cancel()
	defer func() {
		if errors.Is(context.Cause(ctx), errSlowProofs) && err != nil {
			err = errSlowProofs
		}
	}()
	refs, err := c.referrers(ctx, d, sigstore.BundleType)
	if err != nil {
		return nil, err
	}
	for _, ref := range refs {
		s, err := c.referrer(ctx, ref, sigstore.BundleType, sigstore.MaxBundle)
		if errors.Is(err, errOther) {
			continue
		}
		if err != nil && !isUnusable(err) {
			return nil, err
		}
		if isLost(err) {
			err = errors.New("the registry has lost it")
		}
		list = append(list, proof{s, err})
	}
	return list, nil
}

var errSlowProofs = fmt.Errorf("its signatures have not arrived within %v", proofsTime)

// referrers returns the artifacts that refer to a digest and may be of the given type, such as
// signatures. It asks the registry for this type only. Some registries do not know the type of an
// artifact. If such a registry filters, it hides the artifacts. So if the list is empty, referrers
// requests it again without the filter.
func (c *conn) referrers(ctx context.Context, d digest.Digest, kind string) ([]oci.Descriptor, error) {
	list, filtered, err := c.referrersOf(ctx, d, kind, url.Values{"artifactType": {kind}})
	if err == nil && filtered && len(list) == 0 {
		list, _, err = c.referrersOf(ctx, d, kind, nil)
	}
	return list, err
}

// referrersOf reads all pages of the list of referrers (OCI distribution spec 1.1, "Listing
// Referrers"), and returns those artifacts that may be of the given type. It also reports whether
// the registry has applied the filter in the query.
func (c *conn) referrersOf(ctx context.Context, d digest.Digest, kind string, query url.Values) (
	list []oci.Descriptor, filtered bool, err error) {
	u := c.endpoint("referrers", d.String())
	u.RawQuery = query.Encode()
	left := int64(maxReferrers)
	for page := 1; ; page++ {
		p, header, err := c.documentAt(ctx, u, oci.MediaTypeImageIndex, left)
		if page == 1 && isNone(err) {
			list, err = c.taggedReferrers(ctx, d, kind)
			return list, false, err
		}
		if err != nil {
			return nil, false, err
		}
		if list, err = addReferrers(list, d, kind, p); err != nil {
			return nil, false, err
		}
		filtered = filtered || strings.Contains(header.Get("OCI-Filters-Applied"), "artifactType")
		next, err := nextPage(header)
		if err != nil || next == "" {
			return list, filtered, err
		}
		if page == maxPages {
			return nil, false, fmt.Errorf("the list of signatures of %s has more than %d pages", d, maxPages)
		}
		u.RawQuery = next
		left -= int64(len(p))
	}
}

// taggedReferrers is referrersOf for a registry without the API of referrers. The clients of such a registry keep the
// list under a tag.
func (c *conn) taggedReferrers(ctx context.Context, d digest.Digest, kind string) ([]oci.Descriptor, error) {
	p, err := c.document(ctx, "manifests", strings.Replace(d.String(), ":", "-", 1), oci.MediaTypeImageIndex, maxReferrers)
	if isNone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return addReferrers(nil, d, kind, p)
}

// addReferrers appends the artifacts of one page that may refer to a digest and be of the given type.
func addReferrers(list []oci.Descriptor, d digest.Digest, kind string, page []byte) ([]oci.Descriptor, error) {
	var x oci.Index
	if err := json.Unmarshal(page, &x); err != nil {
		return nil, errors.New("the list of signatures cannot be read")
	}
	for _, ref := range x.Manifests {
		switch ref.ArtifactType {
		case kind, oci.MediaTypeEmptyJSON, "": // older registries do not know the field artifactType
		default:
			continue
		}
		if len(list) == maxBundles {
			return nil, fmt.Errorf("%s has more than %d signatures: remove old ones there", d, maxBundles)
		}
		list = append(list, ref)
	}
	return list, nil
}

var nextLink = regexp.MustCompile(`<([^<>]*)>\s*;[^<>]*\brel\s*=\s*"?next\b`) // RFC 8288

// nextPage returns the query of the link to the next page, or "" after the last page. Only the query is used, because
// the registry must not lead the daemon to another server or repository.
func nextPage(header http.Header) (query string, err error) {
	m := nextLink.FindStringSubmatch(strings.Join(header.Values("Link"), ", "))
	if m == nil {
		return "", nil
	}
	u, err := url.Parse(m[1])
	if err != nil || u.RawQuery == "" {
		return "", errors.New("the link to the next page of the list of signatures is not usable")
	}
	return u.RawQuery, nil
}

// isNone reports whether a registry has answered that it has no such document, or no such API.
func isNone(err error) bool {
	var status *transport.Error
	if !errors.As(err, &status) {
		return false
	}
	switch status.StatusCode {
	case http.StatusNotFound, http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable:
		return true
	}
	return false
}

// isLost reports whether a registry has answered that it has no such document.
func isLost(err error) bool {
	var status *transport.Error
	return errors.As(err, &status) && status.StatusCode == http.StatusNotFound
}

// isUnusable reports whether an error concerns only one signature.
func isUnusable(err error) bool {
	var bad *sigstore.InvalidError
	return isLost(err) || errors.As(err, &bad)
}

// errOther reports that an artifact does not have the requested type.
var errOther = errors.New("another artifact")

// referrer fetches the manifest and the file of an artifact. The file has at most limit bytes. If
// the artifact cannot be used, the error is a *sigstore.InvalidError. If it has another type, the error
// is errOther.
func (c *conn) referrer(ctx context.Context, ref oci.Descriptor, kind string, limit int64) (s referrer, err error) {
	if s.text, err = c.verified(ctx, "manifests", oci.MediaTypeImageManifest, ref, maxReferrer); err != nil {
		return s, err
	}
	if err := json.Unmarshal(s.text, &s.parsed); err != nil {
		return s, unusable("its manifest cannot be read")
	}
	if sigstore.HasKeyTwice(s.text) {
		return s, unusable("its manifest has a key twice")
	}
	if s.parsed.ArtifactType != kind {
		return s, errOther
	}
	if layers := s.parsed.Layers; len(layers) != 1 || layers[0].MediaType != kind {
		return s, unusable("its manifest has %d files, not one of its type", len(layers))
	}
	s.file, err = c.verified(ctx, "blobs", "", s.parsed.Layers[0], limit)
	return s, err
}

// verified fetches a document and compares it with its descriptor. The errors quote nothing of the
// descriptor: the registry may have redirected the request for the descriptor to a server that only
// this host can reach.
func (c *conn) verified(ctx context.Context, kind, accept string, d oci.Descriptor, limit int64) ([]byte, error) {
	if err := d.Digest.Validate(); err != nil || d.Digest.Algorithm() != digest.SHA256 {
		return nil, unusable("its digest is no SHA-256")
	}
	if d.Size < 1 || d.Size > limit {
		return nil, unusable("its size is not 1 to %d bytes", limit)
	}
	p, err := c.document(ctx, kind, d.Digest.String(), accept, d.Size)
	var long *artifact.Error
	if errors.As(err, &long) {
		return nil, unusable("it is longer than the registry says")
	}
	if err == nil && (int64(len(p)) != d.Size || digest.FromBytes(p) != d.Digest) {
		err = unusable("it differs from its digest")
	}
	return p, err
}

func unusable(format string, args ...any) error {
	return &sigstore.InvalidError{Err: fmt.Errorf(format, args...)}
}
