package hub

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/opencontainers/go-digest"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/host/store"
)

// Reusing returns r with another rule for a tag that is taken. If the snapshot with the tag came
// from the artifact to pull, a pull returns this snapshot. Otherwise the pull returns an
// *OtherError.
func (r Remote) Reusing() Remote { r.reuse = true; return r }

// NewTag returns the tag that must be free before a pull, or "" if it may be in use.
func (r Remote) NewTag(tag string) string {
	if r.reuse {
		return ""
	}
	return tag
}

// OtherError reports that the tag for a pull is taken by a snapshot that is not known to come from
// the same artifact.
type OtherError struct {
	Tag       string
	Reference string // reference of the artifact to pull, with its digest
}

func (e *OtherError) Error() string {
	return fmt.Sprintf("snapshot %q: exists, and is not known to be %s: fork the existing one ('forkd fork %s'), remove it "+
		"first ('forkd rmi %s'), or pull the reference under a new tag ('forkd pull REGISTRY/NAME:TAG --lazy --tag NEW')",
		e.Tag, e.Reference, e.Tag, e.Tag)
}

func (e *OtherError) Unwrap() error { return &store.ExistsError{Tag: e.Tag} }

// present returns the snapshot that a pull would make, if the store already has it. If the store
// lacks the snapshot, the result has no Artifact.
func (h *Hub) present(tag string, r Remote, o *Offer) (Pulled, error) {
	tag = cmp.Or(tag, o.Snapshot.Tag)
	i, err := h.cfg.Store.Info(tag)
	if !r.reuse || err != nil || i.Writing || i.Damage != "" { // the pull itself reports a tag that is not free
		return Pulled{}, nil
	}
	id, _, err := h.cfg.Store.Version(tag)
	if err != nil {
		return Pulled{}, nil
	}
	if from, err := os.ReadFile(h.cache.pulled(id)); err != nil || digest.Digest(from) != o.Digest() {
		return Pulled{}, &OtherError{Tag: tag, Reference: r.At(o.Digest().String())}
	}
	return Pulled{Artifact: o.Artifact, Info: i, Verdict: o.Verdict}, nil
}

// pulled returns the path of the record that says from which artifact the snapshot with the given
// ID came. Its content is the digest of the artifact.
func (c *cache) pulled(id string) string { return c.path("pulled", id) }

// setPulled records the artifact of a snapshot that is about to be published.
func (c *cache) setPulled(id string, d digest.Digest) error {
	return atomicfile.Write(c.pulled(id), []byte(d), 0o600)
}

// forgetPulled removes a record of setPulled.
func (c *cache) forgetPulled(id string) error {
	if err := os.Remove(c.pulled(id)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
