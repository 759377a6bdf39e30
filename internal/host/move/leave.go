package move

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/state"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// Departure has what the new host of a moving sandbox must know.
type Departure struct {
	From, To string          // names of the hosts
	Tag      string          // tag of the suspended state
	Lock     string          // digest of the key that Commit returns, in hexadecimal
	Record   json.RawMessage // the record of the suspended sandbox
	// Digests of the keys from which tokens and signed URLs of the sandbox are derived. The keys
	// must be equal on both hosts: with another key, the tokens and URLs would become invalid.
	// Empty: the sandbox has no tokens or no URLs.
	TokenKey, LinkKey string
}

// Leave blocks all use of a suspended sandbox until it has moved to another host, or until Cancel.
// If the sandbox has something that cannot move, the error is a *ConflictError that names it.
func (b *Book) Leave(ctx context.Context, id, to string) (m record.Move, d Departure, err error) {
	m, err = b.step(id, func(e *entry) error {
		switch e.Phase {
		case record.MoveLeaving, record.MoveLeft, record.MoveGone:
			if e.Node != to {
				return e.other()
			}
			return nil
		case "":
		default:
			return e.other()
		}
		if err := snapshot.CheckNode(to); err != nil || to == b.cfg.Node {
			return conflict(id, "to %.100q: want the name of another host (its daemon's --node)", to)
		}
		if own, err := vmpool.NodeOf(id); err != nil || own == (snapshot.Node{}) {
			return conflict(id, "its id names no host: it was made by a daemon without --node")
		}
		return b.manager.With(ctx, id, func(h *sandbox.Held) error {
			if err := b.movable(h.Info()); err != nil {
				return err
			}
			e := &entry{Move: record.Move{ID: id, Phase: record.MoveLeaving, Node: to, Since: time.Now().UTC(),
				Key: rand.Text()}}
			if err := b.write(e); err != nil {
				return err
			}
			b.cfg.Fault("leaving")
			unpin, err := h.Detach()
			if err != nil {
				return errors.Join(err, b.forget(id))
			}
			b.set(id, &entry{e.Move, unpin})
			return nil
		})
	})
	if err != nil || m.Phase == record.MoveGone {
		return m, d, err
	}
	d, err = b.departure(&m)
	return m, d, err
}

// movable returns an error if a sandbox has something that cannot move.
func (b *Book) movable(i sandbox.Info) error {
	refuse := func(field, reason string) error { return conflict(i.ID, "%s: %s", field, reason) }
	switch {
	case i.Workspace != "":
		return &failure.HeldError{Op: "move", ID: i.ID, Workspace: i.Workspace}
	case len(i.Volumes) > 0:
		return refuse("volumes", "they stay on this host: detach them first (forkd volume detach)")
	case len(i.Network.Secrets) > 0:
		return refuse("network.secrets", "no daemon gives secrets away: remove them first (forkd net), and set them again")
	case len(i.Annotation) > 0 && !isOfE2B(i.Annotation):
		return refuse("annotation", "it belongs to Docker's API or to a build, which keep more on this host")
	case i.State != sandbox.Suspended: // last, so that a client does not suspend a sandbox that cannot move
		return &state.Error{ID: i.ID, Op: "move", State: i.State}
	}
	info, err := b.cfg.Store.Info(i.StateTag)
	if err == nil && info.Encrypted {
		err = refuse("encryption", "its suspended state is encrypted with a key of this host: decrypt it first")
	}
	return err
}

// isOfE2B reports whether an annotation is one of E2B's API. Annotations of Docker's API and of
// builds have other fields. An annotation with fields of both makes a sandbox act as a container,
// with ports of the host.
func isOfE2B(annotation json.RawMessage) bool {
	var mark struct {
		Timeout *time.Duration  `json:"timeout"`
		Docker  json.RawMessage `json:"docker"`
		Build   json.RawMessage `json:"build"`
	}
	return json.Unmarshal(annotation, &mark) == nil && mark.Timeout != nil && mark.Docker == nil && mark.Build == nil
}

// departure describes a sandbox that is leaving or has left.
func (b *Book) departure(m *record.Move) (d Departure, err error) {
	path := filepath.Join(b.data(m.ID), ledger.SuspendedFile)
	if d.Record, err = os.ReadFile(path); err != nil {
		return d, err
	}
	r, err := ledger.ParseSuspended(path, d.Record)
	if err != nil {
		return d, err
	}
	d.From, d.To, d.Tag, d.Lock = b.cfg.Node, m.Node, r.SnapshotTag, lockOf(m.Key)
	if len(r.Annotation) > 0 {
		if d.TokenKey, err = b.digestOf(tokenKey, m.ID); err != nil {
			return d, err
		}
	}
	d.LinkKey, err = b.digestOf(linkKey, m.ID)
	return d, err
}

// Names of the files with keys.
const (
	tokenKey = "tokens.key"
	linkKey  = "links.key"
)

// digestOf returns a digest of a key and of the id of a sandbox, or "" if there is no such key.
func (b *Book) digestOf(file, id string) (string, error) {
	p, err := os.ReadFile(filepath.Join(b.cfg.KeyDir, file))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	sum := sha256.Sum256(append([]byte("forkd move\x00"+file+"\x00"+id+"\x00"), p...))
	return hex.EncodeToString(sum[:]), err
}

func lockOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// Commit gives a sandbox up for ever. It returns the key with which the other host can run it.
func (b *Book) Commit(id string) (m record.Move, err error) {
	return b.step(id, func(e *entry) error {
		switch e.Phase {
		case record.MoveLeft, record.MoveGone:
			return nil
		case record.MoveLeaving:
			left := *e
			left.Phase = record.MoveLeft
			if err := b.write(&left); err != nil {
				return err
			}
			b.cfg.Done(Left)
			return nil
		}
		return conflict(id, "it does not leave this host")
	})
}

// Free removes the files of a sandbox that the other host can run.
func (b *Book) Free(id string) (record.Move, error) {
	return b.step(id, func(e *entry) error {
		switch e.Phase {
		case record.MoveGone:
			return nil
		case record.MoveLeft:
		default:
			return conflict(id, "it has not left this host")
		}
		gone := &entry{Move: e.Move}
		gone.Phase = record.MoveGone
		if err := b.write(gone); err != nil {
			return err
		}
		b.cfg.Fault("gone")
		if err := os.RemoveAll(b.data(id)); err != nil {
			return err // the next start tries again
		}
		if e.unpin != nil {
			e.unpin()
		}
		return nil
	})
}
