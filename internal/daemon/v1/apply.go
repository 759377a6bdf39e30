package v1

import (
	"encoding/base64"
	"net/http"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/diff"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/tenancy"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/diffproto"
)

// applyFiles is the default number of files in an answer.
const applyFiles = 1000

// apply makes the changes of a snapshot or sandbox in a running sandbox.
func (a *api) apply(w http.ResponseWriter, r *http.Request) error {
	var req apiv1.ApplyRequest
	if err := face.ReadJSON(w, r, &req); err != nil {
		return err
	}
	ask, err := applyRequest(r.PathValue("id"), &req)
	if err != nil {
		return err
	}
	start := time.Now()
	res, err := a.view(r).Apply(r.Context(), a.Differ, ask)
	if err != nil {
		return orTooMany(err)
	}
	audit.From(r.Context()).From = req.From // only after Apply has found this name, because any other text may be a secret
	out := apiv1.Applied{From: req.From, Onto: ask.ID, Base: res.Base, Applied: res.Applied, Files: []apiv1.ApplyFile{},
		Added: res.Added, Changed: res.Changed, Deleted: res.Deleted, Conflicts: res.Conflicts}
	share := face.ShareOf(r)
	for i, e := range res.Entries {
		f := applyFile(e)
		res.Entries[i] = nil // f has a copy of its text
		if share.Keep(200+quotedLen(f.Path)+len(f.PathBase64)) != nil {
			break // an error would hide that the changes may have been made, so the answer omits files
		}
		out.Files = append(out.Files, f)
	}
	all := res.Added + res.Changed + res.Deleted
	if ask.Prefer != diffproto.PreferFrom {
		all += res.Conflicts // conflicts that "from" does not win are in the list, but do not count as changes
	}
	out.Omitted = all > uint64(len(out.Files))
	if res.Conflicts > 0 && req.Prefer == "" && !req.DryRun {
		return &face.ConflictError{ID: ask.ID, From: req.From, Conflicts: res.Conflicts, Files: firstOf(out.Files)}
	}
	out.ApplyMS = millis(time.Since(start))
	return face.WriteJSON(w, r, http.StatusOK, out)
}

// Maximum number of conflicts in an error, and their maximum size in bytes. Clients read at most 1
// MiB of an error.
const (
	maxConflicts     = applyFiles
	maxConflictBytes = 512 << 10
)

// firstOf returns the first files of a list, up to the bounds on conflicts in an error.
func firstOf(files []apiv1.ApplyFile) []apiv1.ApplyFile {
	left := maxConflictBytes
	for i, f := range files {
		if left -= 200 + quotedLen(f.Path) + len(f.PathBase64); i == maxConflicts || left < 0 {
			return files[:i]
		}
	}
	return files
}

// applyRequest checks the request of a client and converts it.
func applyRequest(id string, req *apiv1.ApplyRequest) (out tenancy.ApplyRequest, err error) {
	out.ID, out.From, out.Base, out.DryRun = id, req.From, req.Base, req.DryRun
	if req.From == "" {
		return out, invalid.Errorf("from", "missing: want the tag of a snapshot or the id of a sandbox")
	}
	for _, side := range []struct{ field, name string }{{"from", req.From}, {"base", req.Base}} {
		if side.name == "" || side.field == "from" && vmpool.IsID(side.name) {
			continue
		}
		if err := checkTag(side.name); err != nil {
			return out, &invalid.Error{Field: side.field, Reason: err.Error()}
		}
	}
	for _, p := range req.Paths {
		if !path.IsAbs(p) || len(p) > diffproto.MaxPath || strings.ContainsRune(p, 0) {
			return out, invalid.Errorf("paths", "%.100q: want absolute paths of at most %d bytes", p, diffproto.MaxPath)
		}
		out.Paths = append(out.Paths, path.Clean(p))
	}
	if err := diffproto.CheckPaths(out.Paths); err != nil {
		return out, invalid.Errorf("paths", "%v", err)
	}
	rules := map[string]diffproto.Prefer{"": diffproto.Refuse, "from": diffproto.PreferFrom, "onto": diffproto.PreferOnto}
	rule, ok := rules[req.Prefer]
	if !ok {
		return out, invalid.Errorf("prefer", "%.100q: want from or onto", req.Prefer)
	}
	files := applyFiles
	if req.MaxFiles != nil {
		files = *req.MaxFiles
	}
	if files < 0 || files > diff.MaxEntries {
		return out, invalid.Errorf("max_files", "%d: want 0 to %d", files, diff.MaxEntries)
	}
	out.Prefer, out.Entries = rule, uint32(files)
	return out, nil
}

// applyFile converts an entry for the client.
func applyFile(e *diffproto.Entry) apiv1.ApplyFile {
	f := apiv1.ApplyFile{Path: strings.ToValidUTF8(e.Path, "\ufffd"), Change: changeOf(e.Old.Type, e.New.Type),
		Conflict: e.Conflict, Kept: e.Kept}
	if !utf8.ValidString(e.Path) {
		f.PathBase64 = base64.StdEncoding.EncodeToString([]byte(e.Path))
	}
	if e.Conflict {
		f.From, f.Onto = changeOf(e.Base, e.New.Type), changeOf(e.Base, e.Old.Type)
	}
	return f
}

// changeOf names the change of a file between two states.
func changeOf(old, now diffproto.Type) string {
	switch {
	case old == now && now == diffproto.Absent:
		return "none"
	case old == diffproto.Absent:
		return "added"
	case now == diffproto.Absent:
		return "deleted"
	}
	return "changed"
}
