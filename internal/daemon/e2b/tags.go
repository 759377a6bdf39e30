package e2b

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/tenancy"
)

// defaultTag is the tag of a template whose name has no tag.
const defaultTag = "default"

// Bounds on assigned tags.
const (
	maxTagsOfOne  = 1000  // tags that one client has assigned
	maxTags       = 10000 // tags of all clients
	maxTagsAtOnce = 100   // tags in one request
)

// Tags holds the tags that clients have assigned to templates, in a file.
//
// The template NAME:TAG is the snapshot with the tag NAME.TAG, and NAME:default is the snapshot
// NAME. An assigned tag takes precedence over this rule and leads to another snapshot. The
// assignment ends when that snapshot is deleted, even if a new snapshot gets the same tag.
type Tags struct {
	path string
	mu   sync.Mutex // held by change
	all  atomic.Pointer[[]record.TemplateTag]
}

// OpenTags reads the tags in a file. A missing file has no tags.
func OpenTags(path string) (*Tags, error) {
	t := &Tags{path: path}
	t.all.Store(new([]record.TemplateTag))
	p, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return nil, fmt.Errorf("tags of templates: %w", err)
	}
	list, err := record.ParseTags(path, p)
	if err != nil {
		return nil, fmt.Errorf("tags of templates: %w: remove the file, and all assigned tags are lost", err)
	}
	t.all.Store(&list.Tags)
	return t, nil
}

// of(name, tag) returns the assigned tags of the template with the given name. If tag is not empty,
// the method returns only this tag. It does not wait for a change that is being written to the
// file.
func (t *Tags) of(name, tag string) []record.TemplateTag { return assigned(*t.all.Load(), name, tag) }

// assigned returns those tags of a list that belong to the template with the given name. If tag is
// not empty, it returns only this tag.
func assigned(all []record.TemplateTag, name, tag string) (list []record.TemplateTag) {
	for _, at := range all {
		if n, rest, _ := strings.Cut(at.Name, ":"); n == name && (tag == "" || rest == tag) {
			list = append(list, at)
		}
	}
	return list
}

// change replaces the list of tags with the result of f, and writes the file. After an error,
// nothing is changed.
func (t *Tags) change(f func([]record.TemplateTag) ([]record.TemplateTag, error)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	list, err := f(slices.Clone(*t.all.Load()))
	if err != nil {
		return err
	}
	if err := t.write(list); err != nil {
		return fmt.Errorf("tags of templates: %w", err)
	}
	t.all.Store(&list)
	return nil
}

// write replaces the file. Without tags there is no file.
func (t *Tags) write(list []record.TemplateTag) error {
	if len(list) == 0 {
		if err := os.Remove(t.path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	p, err := record.EncodeTags(&record.TemplateTags{Tags: list})
	if err != nil {
		return err
	}
	return atomicfile.WriteDurable(t.path, p, 0o600)
}

// tagger assigns tags with the rights of a client.
type tagger struct {
	tags *Tags
	view *tenancy.View
	who  auth.Principal
}

func (a *Server) tagger(r *http.Request) tagger {
	return tagger{a.Tags, a.view(r), auth.From(r.Context())}
}

// target returns the snapshot of an assigned tag, if the snapshot still exists and the client sees
// it.
func (t tagger) target(at record.TemplateTag) (store.Detail, bool) {
	d, err := t.view.Snapshot(at.Snapshot)
	return d, err == nil && d.ID == at.ID && !d.Transient
}

// find returns the tag of the snapshot to which an assigned tag of a template leads, or "". It also
// returns "" if snapshotTag(name, tag) is the tag of a snapshot that was made later than the
// assignment, because the assignment is then void.
func (t tagger) find(name, tag string) string {
	own, err := t.view.Snapshot(snapshotTag(name, tag))
	for _, at := range t.tags.of(name, tag) {
		if d, ok := t.target(at); ok && (err != nil || own.Created.Before(at.Assigned)) {
			return d.Tag
		}
	}
	return ""
}

// mayAssign returns an error if the client may not assign a tag of the template with the given
// name, or remove the assignment. Every client may assign a free tag. Other tags may be changed by
// the client that has assigned them, and by clients that may delete templates. A tag that differs
// only in case from the tag of a snapshot is not free, because Server.existing leads to the
// snapshot. The first argument lists all assigned tags.
func (t tagger) mayAssign(all []record.TemplateTag, name, tag string) error {
	own := snapshotTag(name, tag)
	if err := t.view.MayName("tags", own); err != nil {
		return err
	}
	isOwn := func(i store.Info) bool { return strings.EqualFold(i.Tag, own) }
	if slices.ContainsFunc(t.view.Snapshots(), isOwn) {
		return t.who.Need(auth.Admin)
	}
	if had := assigned(all, name, tag); len(had) > 0 && had[0].Who != t.who.Who {
		return t.who.Need(auth.Admin)
	}
	return nil
}

// assign assigns tags of the template with the given name to a snapshot.
func (t tagger) assign(name string, tags []string, of store.Detail) error {
	return t.tags.change(func(all []record.TemplateTag) ([]record.TemplateTag, error) {
		for _, tag := range tags {
			if err := t.mayAssign(all, name, tag); err != nil {
				return nil, err
			}
		}
		all, own := slices.DeleteFunc(all, func(at record.TemplateTag) bool {
			n, tag, _ := strings.Cut(at.Name, ":")
			if n == name && slices.Contains(tags, tag) || at.Who != t.who.Who {
				return n == name && slices.Contains(tags, tag)
			}
			_, alive := t.target(at)
			return !alive
		}), len(tags)
		for _, at := range all {
			if at.Who == t.who.Who {
				own++
			}
		}
		if own > maxTagsOfOne || len(all)+len(tags) > maxTags {
			return nil, face.NewError(http.StatusTooManyRequests, fmt.Sprintf(
				"tags: a client may assign %d, and all together %d: remove some", maxTagsOfOne, maxTags))
		}
		for _, tag := range tags {
			all = append(all, record.TemplateTag{Name: name + ":" + tag, Snapshot: of.Tag, ID: of.ID, Who: t.who.Who,
				Assigned: time.Now().UTC()})
		}
		return all, nil
	})
}

// made() is called when a build has ended with a snapshot. It assigns the tags of the build to the
// snapshot, in place of older assignments. The first tag is the snapshot's own, so it is not
// assigned.
func (t tagger) made(name string, tags []string, snapshot string) error {
	d, err := t.view.Snapshot(snapshot)
	if err != nil || len(tags) == 1 {
		return err
	}
	return t.assign(name, tags[1:], d)
}

// snapshotTag returns the tag of the snapshot to which NAME:TAG leads if no client has assigned
// that tag; see Tags.
func snapshotTag(name, tag string) string {
	if tag == "" || tag == defaultTag {
		return name
	}
	return name + "." + tag
}

// checkTags returns the tags of a request without duplicates, or an error.
func checkTags(name string, tags []string) ([]string, error) {
	if len(tags) > maxTagsAtOnce {
		return nil, face.BadRequest("tags: there are %d: want at most %d", len(tags), maxTagsAtOnce)
	}
	var list []string
	for i, tag := range tags {
		if before, after, both := strings.Cut(tag, ":"); both && before == name { // older SDKs send NAME:TAG
			tag = after
		}
		if _, err := tagOf(name + ":" + tag); err != nil || tag == "" {
			return nil, face.BadRequest("tags[%d]: %.100q: want letters, digits, '.', '-' and '_'", i, tag)
		}
		if !slices.Contains(list, tag) {
			list = append(list, tag)
		}
	}
	if len(list) == 0 {
		return nil, face.BadRequest("tags: want at least one")
	}
	return list, nil
}

// assignTags assigns further tags to the build of a template.
func (a *Server) assignTags(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Target string   `json:"target"`
		Tags   []string `json:"tags"`
	}
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	name, _, _ := strings.Cut(req.Target, ":")
	tags, err := checkTags(name, req.Tags)
	if err != nil {
		return err
	}
	i, err := a.snapshotOf(r, req.Target)
	if err != nil {
		return err
	}
	d, err := a.view(r).Snapshot(i.Tag)
	if err == nil {
		err = a.tagger(r).assign(name, tags, d)
	}
	if err != nil {
		return err
	}
	return face.WriteJSON(w, r, http.StatusCreated, map[string]any{"buildID": noBuild, "tags": tags})
}

// removeTags removes assigned tags of a template. The template's builds stay.
func (a *Server) removeTags(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	tags, err := checkTags(req.Name, req.Tags)
	if err != nil {
		return err
	}
	t := a.tagger(r)
	err = t.tags.change(func(all []record.TemplateTag) ([]record.TemplateTag, error) {
		for _, tag := range tags {
			if err := t.mayRemove(all, req.Name, tag); err != nil {
				return nil, err
			}
		}
		return slices.DeleteFunc(all, func(at record.TemplateTag) bool {
			n, tag, _ := strings.Cut(at.Name, ":")
			return n == req.Name && slices.Contains(tags, tag)
		}), nil
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// mayRemove returns nil if a tag of the template is assigned and the client may remove the
// assignment. In all other cases, it returns an error.
func (t tagger) mayRemove(all []record.TemplateTag, name, tag string) error {
	if len(assigned(all, name, tag)) > 0 {
		return t.mayAssign(all, name, tag)
	}
	own := snapshotTag(name, tag)
	if _, err := t.view.Snapshot(own); err == nil {
		return face.NewError(http.StatusConflict,
			fmt.Sprintf("tags: %q was not assigned: the build itself has this tag: delete the template %s", tag, own))
	}
	return face.NewError(http.StatusNotFound, fmt.Sprintf("tags: the template %.100q has no tag %q", name, tag))
}

// templateTag is a tag in the list of a template's tags.
type templateTag struct {
	Tag       string    `json:"tag"`
	BuildID   string    `json:"buildID"`
	CreatedAt time.Time `json:"createdAt"`
}

// tagsOf returns the tags of the template with the given name: the assigned tags, and the tags of
// the template's builds.
func (a *Server) tagsOf(r *http.Request, name string) (list []templateTag) {
	t := a.tagger(r)
	listed := make(map[string]bool)
	for _, at := range t.tags.of(name, "") {
		if _, ok := t.target(at); ok {
			_, tag, _ := strings.Cut(at.Name, ":")
			listed[tag] = true
			list = append(list, templateTag{tag, noBuild, at.Assigned})
		}
	}
	for _, i := range t.view.Snapshots() {
		tag, below := strings.CutPrefix(i.Tag, name+".")
		if i.Tag == name {
			tag, below = defaultTag, true
		}
		if below && !listed[tag] && !i.Transient && !i.Writing {
			list = append(list, templateTag{tag, noBuild, i.Created})
		}
	}
	return list
}
