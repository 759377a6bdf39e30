package build

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/build/plan"
)

// result is the stored record of a snapshot made by a build.
type result struct {
	ID    string `json:"id,omitempty"`    // id of the snapshot; empty in an announcement
	Box   string `json:"box,omitempty"`   // in an announcement: the sandbox that is branched
	Key   string `json:"key"`             // key of the step
	Admin bool   `json:"admin,omitempty"` // as in Request.Admin
	// Whether the snapshot was built from a recipe; false in records of earlier versions.
	Recipe bool `json:"recipe,omitempty"`
}

func (b *Builder) resultFile(tag string) string { return filepath.Join(b.cfg.Dir, "results", tag) }

func (b *Builder) announced(tag string) string { return filepath.Join(b.cfg.Dir, "announced", tag) }

// announce notes that the branch of a sandbox is about to become the result. If the daemon exits
// before the result has its record, the next daemon finds the result by this note.
func (w *work) announce(box string) error {
	return w.write(w.b.announced(w.req.Tag), result{Box: box})
}

// retract removes the note that announce has written.
func (w *work) retract() { _ = os.Remove(w.b.announced(w.req.Tag)) }

// done() stores the record of the result.
func (w *work) done() error {
	d, err := w.b.cfg.Manager.Snapshots().Detail(w.req.Tag)
	if err != nil {
		return err
	}
	if err := w.write(w.b.resultFile(w.req.Tag), result{ID: d.ID}); err != nil {
		return err
	}
	return os.Remove(w.b.announced(w.req.Tag))
}

func (w *work) write(file string, r result) error {
	r.Key, r.Admin, r.Recipe = w.keys[w.plan.Result], w.req.Admin, w.req.Recipe != nil
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.WriteDurable(file, text, 0o600)
}

// repair writes the records of results that an earlier daemon has published but not recorded. It
// runs before any sandbox of a build can make another branch.
func (b *Builder) repair() error {
	entries, err := os.ReadDir(filepath.Join(b.cfg.Dir, "announced"))
	for _, e := range entries {
		tag := e.Name()
		r, ok := read(b.announced(tag))
		d, gone := b.cfg.Manager.Snapshots().Detail(tag)
		if ok && gone == nil && d.Branch != nil && r.Box != "" && d.Branch.SandboxID == r.Box {
			r.ID, r.Box = d.ID, ""
			text, failed := json.Marshal(r)
			err = errors.Join(err, failed, atomicfile.WriteDurable(b.resultFile(tag), text, 0o600))
		}
		err = errors.Join(err, os.Remove(b.announced(tag)))
	}
	return err
}

// isDone reports whether the result of the build exists already. If the result is to be encrypted,
// an unencrypted snapshot does not count.
func (w *work) isDone() bool {
	r, ok := w.b.resultOf(w.req.Tag)
	if d, err := w.b.cfg.Manager.Snapshots().Detail(w.req.Tag); w.req.Encrypt && (err != nil || !d.Encrypted) {
		return false
	}
	forced := slices.ContainsFunc(w.plan.Steps, func(s plan.Step) bool { return s.Force })
	return ok && !w.req.NoCache && !forced && r.Key == w.keys[w.plan.Result] &&
		w.b.cfg.Manager.Snapshots().Has(w.req.Tag, r.ID)
}

// resultOf returns the record of the snapshot that a build made with a tag.
func (b *Builder) resultOf(tag string) (result, bool) { return read(b.resultFile(tag)) }

func read(file string) (r result, ok bool) {
	text, err := os.ReadFile(file)
	ok = err == nil && json.Unmarshal(text, &r) == nil
	return r, ok
}

// isResult reports whether a build of an admin made the snapshot.
func (b *Builder) isResult(tag, id string) bool {
	r, ok := b.resultOf(tag)
	return ok && r.Admin && r.ID == id
}

// IsParent reports whether an admin built the snapshot with this tag from a recipe. Such a snapshot
// is for all clients, like a parent that an admin has baked.
func (b *Builder) IsParent(tag string) bool {
	r, ok := b.resultOf(tag)
	return ok && r.Admin && r.Recipe && b.cfg.Manager.Snapshots().Has(tag, r.ID)
}
