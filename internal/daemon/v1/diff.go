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
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/diff"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/tenancy"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/diffproto"
)

// Default bounds of the answer to a comparison: the number of files, and the size of all patches.
const (
	diffFiles = 10_000
	diffPatch = 1 << 20 // bytes
)

// diff compares two snapshots or sandboxes.
func (a *api) diff(w http.ResponseWriter, r *http.Request) error {
	var req apiv1.DiffRequest
	if err := face.ReadJSON(w, r, &req); err != nil {
		return err
	}
	ask, err := diffRequest(&req)
	if err != nil {
		return err
	}
	start := time.Now()
	res, err := a.view(r).Diff(r.Context(), a.Differ, ask)
	if err != nil {
		return orTooMany(err)
	}
	e := audit.From(r.Context())
	// The names are written to the audit log only after Diff has found the two sides. Any other
	// text may be a secret.
	if e.From = res.From; vmpool.IsID(req.To) {
		e.Sandbox = req.To
	}
	out := apiv1.Diff{From: res.From, To: req.To, Files: []apiv1.DiffFile{}, Added: res.Added, Changed: res.Changed,
		Deleted: res.Deleted, LinesAdded: res.LinesAdded, LinesDeleted: res.LinesDeleted, Omitted: res.Omitted(),
		Skipped: res.Skipped, MemoryBytes: res.MemoryBytes}
	share := face.ShareOf(r)
	for i, e := range res.Entries {
		f := diffFile(e, ask.Patch)
		res.Entries[i] = nil // f has a copy of its text
		if err := share.Keep(heldBy(&f)); err != nil {
			return err
		}
		out.Files = append(out.Files, f)
	}
	out.DiffMS = millis(time.Since(start))
	return face.WriteJSON(w, r, http.StatusOK, out)
}

// diffRequest checks the request of a client and converts it.
func diffRequest(req *apiv1.DiffRequest) (out tenancy.DiffRequest, err error) {
	out.From, out.To = req.From, req.To
	if req.To == "" {
		return out, invalid.Errorf("to", "missing: want the tag of a snapshot or the id of a sandbox")
	}
	for _, side := range []struct{ field, name string }{{"from", req.From}, {"to", req.To}} {
		if side.name == "" || vmpool.IsID(side.name) {
			continue
		}
		if err := snapshot.CheckTag(side.name); err != nil {
			return out, &invalid.Error{Field: side.field, Reason: err.Error()}
		}
	}
	if out.Path = path.Clean("/" + req.Path); req.Path != "" && !path.IsAbs(req.Path) ||
		len(out.Path) > diffproto.MaxPath || strings.ContainsRune(out.Path, 0) {
		return out, invalid.Errorf("path", "%.100q: want an absolute path of at most %d bytes", req.Path, diffproto.MaxPath)
	}
	files, patch := diffFiles, diffPatch
	if req.MaxFiles != nil {
		files = *req.MaxFiles
	}
	if files < 0 || files > diff.MaxEntries {
		return out, invalid.Errorf("max_files", "%d: want 0 to %d", files, diff.MaxEntries)
	}
	if req.MaxPatchBytes != nil {
		patch = *req.MaxPatchBytes
	}
	if patch < 0 || patch > diff.MaxPatch {
		return out, invalid.Errorf("max_patch_bytes", "%d: want 0 to %d", patch, diff.MaxPatch)
	}
	out.Patch = req.Patch == nil || *req.Patch
	out.Entries, out.MaxPatch = uint32(files), uint64(patch)
	return out, nil
}

// diffFile converts an entry for the client. If patch is true, the result has the entry's patch, or
// the reason why the entry has no patch.
func diffFile(e *diffproto.Entry, patch bool) apiv1.DiffFile {
	f := apiv1.DiffFile{Path: strings.ToValidUTF8(e.Path, "\ufffd"), Change: "changed", Old: diffNode(&e.Old),
		New: diffNode(&e.New), Content: e.Content, LinesAdded: e.LinesAdded, LinesDeleted: e.LinesDeleted}
	if !utf8.ValidString(e.Path) {
		f.PathBase64 = base64.StdEncoding.EncodeToString([]byte(e.Path))
	}
	for _, name := range e.Xattrs {
		f.Xattrs = append(f.Xattrs, strings.ToValidUTF8(name, "\ufffd"))
	}
	switch {
	case f.Old == nil:
		f.Change = "added"
	case f.New == nil:
		f.Change = "deleted"
	}
	if !patch {
		return f
	}
	switch e.Omitted {
	case diffproto.Binary:
		f.PatchOmitted = "binary"
	case diffproto.Large:
		f.PatchOmitted = "large"
	case diffproto.Limit:
		f.PatchOmitted = "limit"
	}
	f.Patch = strings.ToValidUTF8(diff.Patch(e), "\ufffd")
	return f
}

// heldBy returns the approximate size of a file's JSON, in bytes.
func heldBy(f *apiv1.DiffFile) int {
	const fixed, perName = 200, 16
	n := fixed + quotedLen(f.Path) + len(f.PathBase64) + quotedLen(f.Patch)
	for _, name := range f.Xattrs {
		n += perName + quotedLen(name)
	}
	for _, node := range []*apiv1.DiffNode{f.Old, f.New} {
		if node != nil {
			n += quotedLen(node.Target)
		}
	}
	return n
}

// quotedLen returns the length of a text in JSON, in which a character such as \x01 takes six bytes.
func quotedLen(text string) int {
	n := len(text)
	for _, c := range []byte(text) {
		switch {
		case c < ' ':
			n += 5
		case c == '"' || c == '\\':
			n++
		}
	}
	return n
}

// typeNames are the names of the types of files.
var typeNames = [...]string{diffproto.Regular: "file", diffproto.Directory: "dir", diffproto.Symlink: "symlink",
	diffproto.CharDevice: "char", diffproto.BlockDevice: "block", diffproto.FIFO: "fifo", diffproto.Socket: "socket"}

// diffNode converts one side of an entry for the client. It returns nil if this side has no file.
func diffNode(n *diffproto.Node) *apiv1.DiffNode {
	if n.Type == diffproto.Absent {
		return nil
	}
	return &apiv1.DiffNode{Type: typeNames[n.Type], Mode: n.Mode, UID: n.UID, GID: n.GID, Size: n.Size,
		Target: strings.ToValidUTF8(n.Target, "\ufffd")}
}
