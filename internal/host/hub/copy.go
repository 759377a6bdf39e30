package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/sigstore"
)

// Copied is the result of Copy.
type Copied struct {
	*artifact.Artifact
	Verdict    Verdict
	Signatures int   // number of signatures in the source that the copy has too
	Moved      int64 // number of bytes that were sent, including failed tries
}

// Copy copies a snapshot and its signatures from a registry to another repository. It checks the
// signatures as Pull does. It does not check whether this host can run the snapshot. Blobs pass
// through memory only, and Copy fetches only blobs that the other repository lacks and cannot
// mount. The tag is written last, so after an error the other repository has no new tag, and the
// next Copy sends only the remaining blobs. Copy reports its progress as Push does.
func (h *Hub) Copy(ctx context.Context, who string, from, to Remote, on func(Progress)) (_ Copied, err error) {
	target, err := to.tag()
	if err != nil {
		return Copied{}, err
	}
	leave, err := h.transfers.Wait(ctx, owner.FairShare(who, maxTransfers))
	if err != nil {
		return Copied{}, err
	}
	defer leave()
	defer h.trim()
	c, err := h.openCopy(ctx, from)
	if err != nil {
		return Copied{}, err
	}
	h.warn(c.verdict)
	source := from.ref.Context()
	s := &sender{hub: h, who: who, on: on, source: &source, content: c.content}
	dest, err := s.dial(ctx, to, c.Artifact)
	if err != nil {
		return Copied{}, err
	}
	out, err := dest.pusher()
	if err != nil {
		return Copied{}, err
	}
	err = h.paced(ctx, &c.arrived, func(ctx context.Context) error {
		return s.upload(ctx, out, target.Context(), c.Artifact)
	})
	if errors.Is(err, errSlow) || errors.Is(err, errLong) {
		err = &RegistryError{Registry: from.Registry(), Err: fmt.Errorf("copy to %s: %w", to.Registry(), err)}
	}
	if err == nil {
		err = c.finish(ctx, dest, out, target)
	}
	return Copied{c.Artifact, c.verdict, len(c.signatures), s.moved}, dest.failed(err)
}

// copying is a Copy in progress.
type copying struct {
	*artifact.Artifact
	from       *conn
	verdict    Verdict
	signatures []carried
	hot        referrer     // the list of frames that the first forks need; its text is empty if there is none
	arrived    atomic.Int64 // bytes
}

// carried is a signature with the configuration of its manifest.
type carried struct {
	referrer
	config []byte
}

// openCopy fetches the description and the signatures of the source. If the signatures cannot be fetched, openCopy
// fails whatever the policy is, because the copy would lack them.
func (h *Hub) openCopy(ctx context.Context, from Remote) (c *copying, err error) {
	c = &copying{}
	if c.from, err = h.dial(ctx, from, from.ref.Context().Scope(transport.PullScope)); err != nil {
		return nil, err
	}
	check := func(d digest.Digest) error {
		proofs, err := c.from.proofs(ctx, d)
		if err != nil {
			return err
		}
		c.verdict, err = h.judge(from.trust, from.source(), d, func() ([]proof, error) { return proofs, nil })
		if err != nil {
			return err
		}
		if c.verdict.Key.PublicKey != nil {
			if proofs, err = h.onlyTrusted(d, proofs); err != nil {
				return err
			}
		}
		c.signatures, err = c.from.carry(ctx, d, proofs)
		return err
	}
	err = c.from.again(ctx, func() error { c.Artifact, err = c.from.describe(ctx, check); return err })
	if err == nil {
		c.hot, _ = h.findHot(ctx, c.from, c.Digest())
	}
	return c, c.from.failed(err)
}

// onlyTrusted returns the bundles of trusted keys. If a trusted key has signed a snapshot, only
// these bundles are copied. Every writer to the source can add other bundles, and a snapshot with
// too many signatures cannot be pulled.
func (h *Hub) onlyTrusted(d digest.Digest, proofs []proof) (list []proof, err error) {
	keys, err := sigstore.ReadKeys(h.cfg.Trust.Keys)
	if err != nil {
		return nil, err
	}
	for _, p := range proofs {
		if p.err != nil {
			continue
		}
		if _, err := verify("", d, []proof{p}, keys); err == nil {
			list = append(list, p)
		}
	}
	return list, nil
}

// carry returns the signatures that Copy writes for the snapshot with the digest d.
func (c *conn) carry(ctx context.Context, d digest.Digest, proofs []proof) (list []carried, err error) {
	for _, p := range proofs {
		subject := p.parsed.Subject
		if p.err != nil || subject == nil || subject.Digest != d || sigstore.CheckSubject(p.file, d.String()) != nil {
			continue
		}
		config := oci.DescriptorEmptyJSON.Data
		if p.parsed.Config.Digest != oci.DescriptorEmptyJSON.Digest {
			config, err = c.verified(ctx, "blobs", "", p.parsed.Config, maxReferrer)
			if isUnusable(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		list = append(list, carried{p.referrer, config})
	}
	return list, nil
}

// content returns a blob of the source. It compares the blob with its digest while the blob
// arrives.
func (c *copying) content(ctx context.Context, _ int, b artifact.Blob) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	stop := context.AfterFunc(ctx, func() { r.Close() }) // so that a waiting write returns
	go func() {
		x := &fetching{conn: c.from, b: b, out: w, sent: func(n int64) { c.arrived.Add(n) }}
		err := x.run(ctx)
		stop() // the reader gets the error, or the end of the blob
		w.CloseWithError(c.from.failed(err))
	}()
	return &arriving{r, cancel}, nil
}

// arriving is a blob of the source of a copy. Close cancels the requests for the blob.
type arriving struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (a *arriving) Close() error {
	err := a.PipeReader.Close() // close first, so that no reader takes the cancellation for a failure of the source
	a.cancel()
	return err
}

// finishTime is the maximum time for writing the manifest, the signatures and the tag, which follow
// the blobs.
const finishTime = 15 * time.Minute

// finish writes the manifest, the signatures and the tag. The manifest comes first, because a registry may refuse
// signatures of a manifest that it lacks. The tag comes last, so that a snapshot with this tag has its signatures.
// If the target would then have more signatures than a pull accepts, finish writes nothing.
func (c *copying) finish(ctx context.Context, dest *conn, out *remote.Pusher, target name.Tag) error {
	ctx, cancel := context.WithTimeout(ctx, finishTime)
	defer cancel()
	present, err := dest.referrers(ctx, c.Digest(), sigstore.BundleType)
	if err != nil {
		return err
	}
	all := make(map[digest.Digest]bool)
	for _, d := range present {
		all[d.Digest] = true
	}
	for _, s := range c.signatures {
		all[digest.FromBytes(s.text)] = true
	}
	if len(all) > maxBundles {
		return &RegistryError{Registry: dest.Registry(), Err: fmt.Errorf("%s would have %d signatures, and a pull "+
			"accepts at most %d: delete some there", c.Digest(), len(all), maxBundles)}
	}
	repo := target.Context()
	if err := out.Put(ctx, repo.Digest(c.Digest().String()), manifest(c.Manifest)); err != nil {
		return err
	}
	for _, s := range c.signatures {
		if err := s.put(ctx, out, repo, s.config); err != nil {
			return err
		}
	}
	if err := c.hot.putHot(ctx, out, repo); err != nil {
		return err
	}
	return out.Put(ctx, target, manifest(c.Manifest))
}
