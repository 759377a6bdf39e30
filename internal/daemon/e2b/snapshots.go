package e2b

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// maxFork bounds the number of copies in one request.
const maxFork = 100

// fork makes copies of a sandbox. The sandbox stays running or paused.
func (a *Server) fork(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Timeout *int64 `json:"timeout"`
		Count   *int   `json:"count"`
	}
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	timeout, err := seconds(req.Timeout, defaultTimeout)
	if err != nil {
		return err
	}
	count := 1
	if req.Count != nil {
		count = *req.Count
	}
	if count < 1 || count > maxFork {
		return face.BadRequest("count: %d: want 1 to %d", count, maxFork)
	}
	i, err := a.find(r)
	if err != nil {
		return err
	}
	n, _ := annotationOf(i)
	n.Timeout = timeout
	ask := sandbox.ForkRequest{N: count, AllowPartial: true, TTL: max(timeout, time.Nanosecond),
		ExpirySuspends: i.ExpirySuspends}
	if ask.Annotation, err = json.Marshal(n); err != nil {
		return err
	}
	var made sandbox.ForkResult
	start := time.Now()
	if i.State == sandbox.Suspended { // the sandbox stays suspended, and the copies are forks of its saved state
		err = a.view(r).With(r.Context(), i.ID, func(h *sandbox.Held) (err error) {
			made, err = h.Fork(r.Context(), ask)
			return err
		})
	} else {
		made, _, err = a.view(r).ForkSandbox(r.Context(), i.ID, sandbox.BranchRequest{Mode: vm.BranchDiff}, ask)
	}
	a.Traces.Fork(r, start, i.ID, made, err)
	if err != nil {
		return err
	}
	type result struct {
		Sandbox *created   `json:"sandbox,omitempty"`
		Error   *errorBody `json:"error,omitempty"`
	}
	results, log := make([]result, 0, count), audit.From(r.Context())
	for _, i := range made.Sandboxes {
		c := a.createdOf(i)
		log.Sandboxes = append(log.Sandboxes, i.ID)
		results = append(results, result{Sandbox: &c})
	}
	for len(results) < count {
		results = append(results, result{Error: &errorBody{http.StatusInternalServerError, "this copy did not start"}})
	}
	return face.WriteJSON(w, r, http.StatusCreated, results)
}

// snapshotInfo describes a snapshot. Its id is its tag.
type snapshotInfo struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

// createSnapshot makes a snapshot of a sandbox. The sandbox stays running or paused.
func (a *Server) createSnapshot(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Name   string `json:"name"`
		Memory *bool  `json:"memory"`
	}
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	i, err := a.find(r)
	if err != nil {
		return err
	}
	ask := sandbox.BranchRequest{Mode: vm.BranchDiff}
	if req.Memory != nil && !*req.Memory {
		ask.Mode = vm.BranchDisk
	}
	if req.Name != "" {
		if ask.Tag, err = tagOf(req.Name); err != nil {
			return face.BadRequest("name: %v", err)
		}
	}
	var made store.Info
	if i.State == sandbox.Suspended && ask.Mode == vm.BranchDisk {
		return unsupported("memory: false", "the file system of a paused sandbox cannot be brought to rest: connect to it first")
	}
	if i.State == sandbox.Suspended { // the sandbox stays suspended
		err = a.view(r).With(r.Context(), i.ID, func(h *sandbox.Held) (err error) {
			made, err = h.Copy(r.Context(), ask.Tag)
			return err
		})
	} else {
		var b sandbox.BranchResult
		start := time.Now()
		b, err = a.view(r).Branch(r.Context(), i.ID, ask)
		a.Traces.Branch(r, start, i.ID, b, err)
		made = b.Info
	}
	if err != nil {
		return err
	}
	return face.WriteJSON(w, r, http.StatusCreated, snapshotInfo{made.Tag, []string{made.Tag}})
}

// listSnapshots answers with a page of the list of snapshots that were made of sandboxes. It omits
// the snapshots of template builds.
func (a *Server) listSnapshots(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	name, err := "", error(nil)
	if q.Get("name") != "" {
		if name, err = tagOf(q.Get("name")); err != nil {
			return err
		}
	}
	all := slices.DeleteFunc(a.view(r).Snapshots(), func(i store.Info) bool {
		of := q.Get("sandboxID")
		return i.Branch == nil || i.Branch.Template || i.Transient || i.Writing || i.Damage != "" ||
			name != "" && i.Tag != name || of != "" && i.Branch.SandboxID != of
	})
	slices.SortStableFunc(all, func(x, y store.Info) int { return y.Created.Compare(x.Created) })
	page, err := pageOf(w, q, all, func(i store.Info) string { return i.Tag })
	if err != nil {
		return err
	}
	out := make([]snapshotInfo, len(page))
	for n, i := range page {
		out[n] = snapshotInfo{i.Tag, []string{i.Tag}}
	}
	return face.WriteJSON(w, r, http.StatusOK, out)
}

// templateInfo describes a snapshot as a template.
type templateInfo struct {
	TemplateID  string    `json:"templateID"`
	BuildID     string    `json:"buildID"`
	CPUs        uint32    `json:"cpuCount"`
	MemoryMiB   uint64    `json:"memoryMB"`
	DiskMiB     uint64    `json:"diskSizeMB"`
	Public      bool      `json:"public"`
	Aliases     []string  `json:"aliases"`
	Names       []string  `json:"names"`
	CreatedAt   time.Time `json:"createdAt"`
	UpdatedAt   time.Time `json:"updatedAt"`
	CreatedBy   any       `json:"createdBy"`
	LastSpawned any       `json:"lastSpawnedAt"`
	Spawned     int       `json:"spawnCount"`
	Builds      int       `json:"buildCount"`
	EnvdVersion string    `json:"envdVersion"`
	BuildStatus string    `json:"buildStatus"`
}

func templateOf(i store.Info) templateInfo {
	status := "ready"
	switch {
	case i.Damage != "":
		status = "error"
	case i.Writing:
		status = "building"
	}
	return templateInfo{TemplateID: i.Tag, BuildID: noBuild, CPUs: i.Machine.VCPUs, MemoryMiB: i.Machine.MemoryBytes >> 20,
		DiskMiB: i.Base.Bytes >> 20, Aliases: []string{i.Tag}, Names: []string{i.Tag}, CreatedAt: i.Created,
		UpdatedAt: i.Created,
		Builds:    1, EnvdVersion: envdVersion, BuildStatus: status}
}

// noBuild is reported as the build of every template, because the SDKs require a UUID, and forkd
// stores no id of a build.
const noBuild = "00000000-0000-0000-0000-000000000000"

// listTemplates answers with all snapshots except saved states of paused sandboxes and steps of
// builds.
func (a *Server) listTemplates(w http.ResponseWriter, r *http.Request) error {
	all := slices.DeleteFunc(a.view(r).Snapshots(), func(i store.Info) bool {
		return i.Transient || snapshot.IsStepTag(i.Tag)
	})
	return face.WriteArray(w, all, templateOf)
}

// snapshotOf returns the snapshot for a template's id or name.
func (a *Server) snapshotOf(r *http.Request, name string) (store.Info, error) {
	tag, err := a.existing(r, name)
	return a.snapshot(r, name, tag, err)
}

// snapshot returns the snapshot with a tag. The name is the template's. If the search for the tag
// has failed with the error err, the result is an error that contains this name.
func (a *Server) snapshot(r *http.Request, name, tag string, err error) (store.Info, error) {
	if err != nil {
		return store.Info{}, face.NewError(http.StatusNotFound, fmt.Sprintf("template %q: not found", name))
	}
	d, err := a.view(r).Snapshot(tag)
	if err == nil && d.Transient {
		err = &store.NotFoundError{Tag: tag}
	}
	return d.Info, err
}

func (a *Server) template(w http.ResponseWriter, r *http.Request) error {
	i, err := a.snapshotOf(r, r.PathValue("id"))
	if err != nil {
		return err
	}
	return face.WriteJSON(w, r, http.StatusOK, templateOf(i))
}

// templatePart answers two routes of E2B that a ServeMux cannot distinguish.
// /templates/aliases/NAME describes the template NAME. /templates/ID/tags lists the tags of a
// template.
func (a *Server) templatePart(w http.ResponseWriter, r *http.Request) error {
	id, what := r.PathValue("id"), r.PathValue("what")
	name := id
	if id == "aliases" {
		name = what
	} else if what != "tags" {
		return unserved(r)
	} else if tags := a.tagsOf(r, id); len(tags) > 0 {
		return face.WriteJSON(w, r, http.StatusOK, tags)
	}
	i, err := a.snapshotOf(r, name)
	if err != nil {
		return err
	}
	if id == "aliases" {
		return face.WriteJSON(w, r, http.StatusOK, map[string]any{"templateID": i.Tag, "public": false})
	}
	return face.WriteJSON(w, r, http.StatusOK, []templateTag{{defaultTag, noBuild, i.Created}})
}

// deleteTemplate deletes a snapshot. Other snapshots that need its files have hard links to them.
func (a *Server) deleteTemplate(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("id")
	tag, err := tagOf(name) // assigned tags do not count: they may be tags of another client
	i, err := a.snapshot(r, name, a.named(r, tag), err)
	if err != nil {
		return err
	}
	if err := a.view(r).DeleteSnapshot(i.Tag, store.DeleteForce); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
