package move

import (
	"context"
	"encoding/hex"
	"errors"
	"os"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// Arrive fetches a sandbox that is leaving another host. The argument from refers to the snapshot
// of its suspended state on that host, and who is the name of the client that pulls it. The sandbox
// cannot be used before Activate. Everything in d is hostile until it is checked here.
func (b *Book) Arrive(ctx context.Context, who, id string, d Departure, from hub.Remote) (record.Move, error) {
	return b.step(id, func(e *entry) error {
		if _, err := b.manager.Get(id); err == nil {
			return nil // the sandbox has arrived and was activated
		}
		if e.Phase == "" && b.manager.Has(id) {
			return conflict(id, "this daemon has left alone a sandbox with this id ('forkd doctor' says why)")
		}
		r, err := b.check(id, &d)
		if err != nil {
			return err
		}
		if b.isOpen(id, d.Lock) {
			return nil // the sandbox has arrived and was activated, and has ended or moved on since
		}
		was := ""
		switch e.Phase {
		case "":
		case record.MoveGone:
			was = e.Node
		case record.MoveArriving:
			if e.Lock != d.Lock {
				return e.other()
			}
			return b.renounce(e, b.complete(id))
		default:
			return e.other()
		}
		return b.fetch(ctx, who, r, from, &entry{Move: record.Move{ID: id, Phase: record.MoveArriving, Node: d.From,
			Since: time.Now().UTC(), Lock: d.Lock, Was: was}})
	})
}

// fetch pulls the snapshot of a suspended state, and stores the records of the sandbox and of the
// move. After an error, neither the snapshot nor a record of the arrival stays.
func (b *Book) fetch(ctx context.Context, who string, r *ledger.Record, from hub.Remote, e *entry) (err error) {
	got, err := b.hub.Pull(ctx, who, r.SnapshotTag, from.Under(hub.Off).Transient(), func(hub.Progress) {})
	if err != nil {
		return err
	}
	unpin, err := b.cfg.Store.Pin(r.SnapshotTag)
	if err != nil {
		return err
	}
	e.unpin = unpin
	defer func() {
		if err != nil {
			unpin() // deletes the snapshot
		}
	}()
	b.cfg.Fault("pulled")
	switch m := got.Snapshot; {
	case m.DiskOnly():
		return invalid.Errorf("from", "the snapshot has no memory")
	case m.Machine.MemoryBytes != r.MemoryBytes:
		return invalid.Errorf("departure.record", "memory_bytes: %d, but the snapshot's guest has %d", r.MemoryBytes,
			m.Machine.MemoryBytes)
	}
	if r.SnapshotID, _, err = b.cfg.Store.Version(r.SnapshotTag); err != nil {
		return err
	}
	if err := b.write(e); err != nil {
		return err
	}
	b.cfg.Fault("arriving")
	if err = os.MkdirAll(b.data(e.ID), 0o700); err == nil {
		err = ledger.WriteSuspended(b.data(e.ID), r)
	}
	if err != nil {
		return errors.Join(err, b.reverse(&e.Move))
	}
	b.cfg.Store.Cool(r.SnapshotTag)
	return nil
}

// complete returns an error if this host does not have the files of a sandbox that has arrived. An
// earlier Arrive may have failed on a full disk, without removing its record.
func (b *Book) complete(id string) error {
	r, err := ledger.ReadSuspended(b.data(id))
	if err == nil && !b.cfg.Store.Has(r.SnapshotTag, r.SnapshotID) {
		err = &store.NotFoundError{Tag: r.SnapshotTag}
	}
	if err != nil {
		return conflict(id, "this host has lost its files: fetch them again (arrive): %v", err)
	}
	return nil
}

// renounce undoes an Arrive if why is not nil. It returns why.
func (b *Book) renounce(e *entry, why error) error {
	if why == nil {
		return nil
	}
	if err := b.reverse(&e.Move); err != nil {
		return errors.Join(why, err)
	}
	if e.unpin != nil {
		e.unpin()
	}
	return why
}

// stateTag is the beginning of the tag of each suspended state, see package sandbox.
const stateTag = "suspended-"

// hostname matches the host names of sandboxes.
var hostname = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// maxOwner bounds the name of a sandbox's owner, in bytes.
const maxOwner = 256

// maxAhead is how far the clock of another host may be ahead of this host's clock.
const maxAhead = 24 * time.Hour

// isPlausible reports whether a time can be in a record. A time such as the year 10000 makes every
// list with the sandbox unreadable for clients.
func isPlausible(t time.Time) bool { return t.UTC().Year() >= 2000 && t.UTC().Year() < 9999 }

// check checks a departure, and returns the record in it of the sandbox that is to arrive.
func (b *Book) check(id string, d *Departure) (*ledger.Record, error) {
	node, err := vmpool.NodeOf(id)
	if err != nil || node == (snapshot.Node{}) {
		return nil, invalid.Errorf("id", "%.100q: want the id of a sandbox that names a host", id)
	}
	if d.To != b.cfg.Node {
		return nil, invalid.Errorf("departure.to", "%.100q: this host is %q", d.To, b.cfg.Node)
	}
	if err := snapshot.CheckNode(d.From); err != nil || d.From == d.To {
		return nil, invalid.Errorf("departure.from", "%.100q: want the name of another host", d.From)
	}
	if p, err := hex.DecodeString(d.Lock); err != nil || len(p) != 32 {
		return nil, invalid.Errorf("departure.lock", "want 64 hexadecimal digits")
	}
	for _, key := range []struct{ field, file, want string }{
		{"departure.token_key", tokenKey, d.TokenKey}, {"departure.link_key", linkKey, d.LinkKey},
	} {
		have, err := b.digestOf(key.file, id)
		if err != nil {
			return nil, err
		}
		if key.want != "" && have != key.want {
			return nil, invalid.Errorf(key.field, "the hosts have different files %s, so tokens or URLs of the sandbox would "+
				"become invalid: copy the file from the state directory of %q to this host, and restart this daemon",
				key.file, d.From)
		}
	}
	r, err := ledger.ParseSuspended("the record", d.Record)
	if err != nil {
		return nil, &invalid.Error{Field: "departure.record", Reason: err.Error()}
	}
	if field := strange(id, &r); field != "" {
		return nil, invalid.Errorf("departure.record", "%s: it has not the form of a suspended sandbox that can move", field)
	}
	for _, err := range []error{ledger.CheckLabels(r.Labels), ledger.CheckGiven(r.Env, "", r.Annotation, &r.Hooks, nil)} {
		if err != nil {
			return nil, &invalid.Error{Field: "departure.record", Reason: err.Error()}
		}
	}
	r.Fork = "" // the fork has ended, and its ID means nothing here
	return &r, nil
}

// strange checks that a record has the form of a suspended sandbox that can move. It returns the
// name of the first wrong field, or "". Without this check, the record could name files, snapshots
// and processes of this host.
func strange(id string, r *ledger.Record) string {
	number, isState := strings.CutPrefix(r.SnapshotTag, stateTag+id+"-")
	for _, c := range []struct {
		field string
		wrong bool
	}{
		{"id", r.ID != id},
		{"snapshot_tag", !isState || number == "" || strings.Trim(number, "0123456789") != "" || len(number) > 10},
		{"snapshot_id", snapshot.CheckID(r.SnapshotID) != nil},
		{"origin", snapshot.CheckTag(r.Origin) != nil},
		{"hostname", !hostname.MatchString(r.Hostname)},
		{"owner", len(r.Owner) > maxOwner || strings.ContainsFunc(r.Owner, unicode.IsControl)},
		{"pid", r.PID != 0},
		{"protocol", r.Protocol != 0},
		{"created", !isPlausible(r.Created) || time.Until(r.Created) > maxAhead},
		{"expires", !r.Expires.IsZero() && !isPlausible(r.Expires)},
		{"top", r.Top != ""},
		{"tops", r.Tops < 0},
		{"frozen", len(r.Frozen) > 0},
		{"branch_count", r.Count < 0},
		{"suspends", r.Suspends < 1},
		{"volumes", len(r.Volumes) > 0},
		{"network.secrets", len(r.Network.Secrets) > 0},
		{"at", r.At != nil && (snapshot.CheckTag(r.At.Tag) != nil || r.At.ID != "" && snapshot.CheckID(r.At.ID) != nil)},
		{"rebased", r.Rebased != nil},
		{"rebasing", r.Rebasing != nil},
		{"pending", r.Pending != nil},
		{"paused", r.Paused},
		{"restoring", r.Restoring || r.RestoringTo != nil},
		{"annotation", len(r.Annotation) > 0 && !isOfE2B(r.Annotation)},
	} {
		if c.wrong {
			return c.field
		}
	}
	return ""
}
