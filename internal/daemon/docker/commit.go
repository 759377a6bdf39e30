package docker

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Labels of a snapshot that docker commit has made.
const (
	commentLabel = "comment"
	authorLabel  = "author"
)

// commit branches a container. The new image has the memory of the container, with its running
// programs.
func (s *Server) commit(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	r.SetPathValue("id", q.Get("container"))
	c, err := s.find(r)
	if err != nil {
		return err
	}
	var changes json.RawMessage
	if err := readJSON(w, r, &changes); err != nil {
		return err
	}
	if len(q["changes"]) > 0 || len(changes) > 0 && string(changes) != "null" && !allEmpty(changes) {
		return unsupported("changes", "an image has no command; use forkd build to set variables or a user")
	}
	full := ""
	if repository := q.Get("repo"); repository != "" {
		if tag := q.Get("tag"); tag != "" {
			repository += ":" + tag
		}
		if full, err = fullName(repository); err != nil {
			return err
		}
		if err := s.mayName(r, full, ""); err != nil {
			return err
		}
	}
	if err := s.wake(r, &c); err != nil {
		return err
	}
	req := sandbox.BranchRequest{Mode: vm.BranchLive, Labels: map[string]string{}}
	for label, parameter := range map[string]string{commentLabel: "comment", authorLabel: "author"} {
		if text := q.Get(parameter); text != "" {
			req.Labels[label] = text
		}
	}
	// If a snapshot has this tag already, the new snapshot gets another tag. The name then moves
	// from the old image to the new one, as in Docker.
	if tag := tagOf(full); full != "" && tag != "" {
		if _, err := s.view(r).Snapshot(tag); err != nil {
			req.Tag = tag
		}
	}
	res, err := s.view(r).Branch(r.Context(), c.id, req)
	if err != nil {
		return err
	}
	d, err := s.view(r).Snapshot(res.Info.Tag)
	if err != nil {
		return err
	}
	if err := s.name(r, full, d, req.Tag == ""); err != nil {
		return err
	}
	s.feed.emit(imageEvent("commit", imageID(d.ID), full))
	return face.WriteJSON(w, r, http.StatusCreated, struct {
		ID string `json:"Id"`
	}{imageID(d.ID)})
}

// name gives a snapshot a full name, if the client is allowed to give this name. If full is empty,
// it does nothing. If the snapshot already has the name because of its own tag, the method only
// takes the name away from any other snapshot. If made is true, the snapshot was made for this
// name.
func (s *Server) name(r *http.Request, full string, d store.Detail, made bool) error {
	if full == "" {
		return nil
	}
	if err := s.mayName(r, full, d.Tag); err != nil {
		return err
	}
	if tagOf(full) == d.Tag {
		return s.tags.remove(func(a alias) bool { return a.Name == full })
	}
	return s.setAlias(r, full, d, made)
}

// setAlias is like name, but it also records a name that the snapshot has because of its own tag. A
// later pull then knows that this image is the image of the registry.
func (s *Server) setAlias(r *http.Request, full string, d store.Detail, made bool) error {
	if err := s.mayName(r, full, d.Tag); err != nil {
		return err
	}
	who := auth.From(r.Context())
	a := alias{Name: full, Snapshot: d.Tag, ID: d.ID, Made: made, Who: who.Who, Admin: who.Scope >= auth.Admin}
	if tag := tagOf(full); tag != "" {
		if own, err := s.view(r).Snapshot(tag); err == nil {
			a.Over = own.ID
		}
	}
	return s.tags.set(a, func(old alias) error { return mayChange(r, old) })
}

// tagImage answers a POST to an image: it gives the image a further name. The path has the image's
// name, which may contain slashes, and then the operation.
func (s *Server) tagImage(w http.ResponseWriter, r *http.Request) error {
	asked, isTag := strings.CutSuffix(r.PathValue("name"), "/tag")
	if !isTag {
		if name, isPush := strings.CutSuffix(r.PathValue("name"), "/push"); isPush {
			return unsupported("push of "+name, "use forkd push, which sends the snapshot to a registry")
		}
		if asked == "load" {
			return unsupported("POST /images/load", "use forkd unpack, which reads a snapshot from an archive")
		}
		return s.unserved(w, r)
	}
	img, err := s.imageOf(r, asked)
	if err != nil {
		return err
	}
	to := r.URL.Query().Get("repo")
	if tag := r.URL.Query().Get("tag"); tag != "" {
		to += ":" + tag
	}
	full, err := fullName(to)
	if err != nil {
		return err
	}
	if err := s.name(r, full, img.Detail, false); err != nil {
		return err
	}
	s.feed.emit(imageEvent("tag", img.ID, full))
	w.WriteHeader(http.StatusCreated)
	return nil
}

// removed is a line of the answer to a request to remove an image.
type removed struct {
	Untagged string `json:",omitempty"`
	Deleted  string `json:",omitempty"`
}

// removeImage removes a name of an image. When it removes the last name, it deletes the image's
// snapshot.
func (s *Server) removeImage(w http.ResponseWriter, r *http.Request) error {
	asked := r.PathValue("name")
	img, err := s.imageOf(r, asked)
	if err != nil {
		return err
	}
	full, err := fullName(asked)
	a, isAlias := s.alias(s.view(r), full)
	isAlias = isAlias && err == nil && a.ID == img.Detail.ID && tagOf(full) != img.snapshot
	byName := isAlias || tagOf(asked) == img.snapshot
	force := boolQuery(r, "force")
	switch {
	case isAlias && (!a.Made || len(img.names) > 1):
		if err := mayChange(r, a); err != nil {
			return err
		}
		if err := s.tags.remove(func(old alias) bool { return old.Name == full }); err != nil {
			return err
		}
		s.feed.emit(imageEvent("untag", img.ID, full))
		return face.WriteJSON(w, r, http.StatusOK, []removed{{Untagged: full}})
	case byName && len(img.names) > 1:
		others := slices.DeleteFunc(slices.Clone(img.names), func(n string) bool { return tagOf(n) == img.snapshot })
		return conflict("conflict: unable to remove %q: the name is that of the snapshot, and the image has further "+
			"names: remove %.1000s first", asked, strings.Join(others, ", "))
	case !byName && len(img.names) > 1 && !force:
		return conflict("conflict: unable to delete %.20s (must be forced) - image is referenced in multiple repositories",
			img.ID)
	}
	if err := auth.From(r.Context()).Need(auth.Admin); err != nil { // deleting a snapshot needs this scope
		return err
	}
	mode := store.DeleteSingle
	if force {
		mode = store.DeleteForce
	}
	if err := s.view(r).DeleteSnapshot(img.snapshot, mode); err != nil {
		return err
	}
	if err := s.tags.remove(func(old alias) bool { return old.ID == img.Detail.ID }); err != nil {
		return err
	}
	list := []removed{}
	for _, name := range img.names {
		list = append(list, removed{Untagged: name})
		s.feed.emit(imageEvent("untag", img.ID, name))
	}
	s.feed.emit(imageEvent("delete", img.ID, ""))
	return face.WriteJSON(w, r, http.StatusOK, append(list, removed{Deleted: img.ID}))
}

// pruneImages deletes images without a name.
func (s *Server) pruneImages(w http.ResponseWriter, r *http.Request) error {
	wanted, err := filtersOf(r, "dangling")
	if err != nil {
		return err
	}
	if wanted.has("dangling", "false") || wanted.has("dangling", "0") {
		return unsupported("filter dangling=false", "snapshots are not only images: remove images by their names")
	}
	list, space := []removed{}, uint64(0)
	for _, img := range s.images(r) {
		if len(img.names) > 0 {
			continue
		}
		if err := s.view(r).DeleteSnapshot(img.snapshot, store.DeleteSingle); err != nil {
			continue // containers or other images need it
		}
		list = append(list, removed{Deleted: img.ID})
		space += img.size()
	}
	return face.WriteJSON(w, r, http.StatusOK, struct {
		ImagesDeleted  []removed
		SpaceReclaimed uint64
	}{list, space})
}

// prune deletes the containers of this API that do not run. Suspended sandboxes of other APIs are
// kept.
func (s *Server) prune(w http.ResponseWriter, r *http.Request) error {
	wanted, err := filtersOf(r, "label", "until")
	if err != nil {
		return err
	}
	var until time.Time
	for _, text := range wanted["until"] {
		if until, err = untilOf(text, time.Now()); err != nil {
			return err
		}
	}
	ids, log := []string{}, audit.From(r.Context())
	for _, c := range s.all(r) {
		st := c.status()
		if !c.isOwn() || st != created && st != exited || !wanted.labels(c.info.Labels) ||
			!until.IsZero() && !c.info.Created.Before(until) {
			continue
		}
		if s.pruneOne(r.Context(), r, c) {
			ids = append(ids, containerID(c.id))
			log.Sandboxes = append(log.Sandboxes, c.id)
		}
	}
	return face.WriteJSON(w, r, http.StatusOK, struct {
		ContainersDeleted []string
		SpaceReclaimed    uint64
	}{ids, 0})
}

// pruneOne deletes a container. If the container was started after prune looked for candidates,
// pruneOne keeps it.
func (s *Server) pruneOne(ctx context.Context, r *http.Request, c found) bool {
	unlock, err := c.lock(ctx)
	if err != nil {
		return false
	}
	defer unlock()
	st, gone, _ := c.now()
	if gone || st.Status != created && st.Status != exited || s.view(r).Kill(c.id) != nil {
		return false
	}
	s.forget(c.id)
	return true
}

// untilOf returns the time of a filter: seconds of Unix time, an RFC 3339 time, or a duration before
// now.
func untilOf(text string, now time.Time) (time.Time, error) {
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	return parseTime("until", text)
}
