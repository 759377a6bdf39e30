package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/tenancy"
)

// tags has those names of images that differ from their snapshots' tags, and stores them in a file.
// These are names that clients have given with docker tag or docker commit, and names that no
// snapshot can have. In addition, tags has the names of all pulled images. Each of these names
// takes precedence over a snapshot that has the name as its tag and existed before the name was
// given. A name is removed when its snapshot is deleted. A new snapshot whose tag is the name takes
// the name, if no administrator has given the name.
type tags struct {
	path string

	mu  sync.Mutex
	all []alias // the elements do not change
}

// alias is a further name of a snapshot.
type alias = record.ImageName

// Bounds on names. One client may create at most three quarters of all names, and at most three quarters of
// the names of one image. Lists of images encode one image at a time, so the names of one image must be few.
const (
	maxTags       = 10_000
	maxTagsOf     = 500      // names of one image
	maxRepository = 255      // bytes of a name before its tag, as in Docker
	maxTagsFile   = 16 << 20 // bytes
)

// openTags reads the names in a file. If the file is missing, there are no names. openTags renames
// a file that cannot be read, and omits a name that is not valid: the daemon must start in any
// case.
func openTags(path string, log *slog.Logger) *tags {
	t := &tags{path: path}
	all, err := readTags(path)
	if err != nil {
		err = errors.Join(err, os.Rename(path, path+refused))
		log.Error("the names of images are lost: the record is renamed", "to", path+refused, "error", err)
		return t
	}
	for _, a := range all {
		full, err := fullName(a.Name)
		if err == nil && full != a.Name {
			err = fmt.Errorf("want %s", full)
		}
		if err = errors.Join(err, snapshot.CheckTag(a.Snapshot)); err != nil {
			log.Error("the name of an image is left out", "name", a.Name, "record", path, "error", err)
			continue
		}
		t.all = append(t.all, a)
	}
	return t
}

// refused is the suffix of the name of a file that openTags could not read.
const refused = ".refused"

func readTags(path string) ([]alias, error) {
	p, err := readAtMost(path, maxTagsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := record.ParseImageNames(path, p)
	if err != nil {
		return nil, err
	}
	return names.Names, nil
}

// fullName returns the name of an image with its tag, in the form in which names are compared. The
// full name of a full name is this name itself. The error says why a name is not permitted.
func fullName(text string) (string, error) {
	repository, tag := split(text)
	full := repository + ":" + tag
	if len(repository) > maxRepository {
		return "", face.BadRequest("invalid reference format: %.40q… has %d characters before the tag: want at most %d",
			repository, len(repository), maxRepository)
	}
	_, err := name.NewTag(full)
	switch {
	case err != nil:
	case slices.Contains(strings.Split(repository, "/"), ""):
		err = fmt.Errorf("%.300s has an empty part between slashes", repository)
	case repository == digestName || idForm.MatchString(repository):
		err = fmt.Errorf("%s has the form of an id: choose another name", repository)
	}
	if err != nil {
		return "", face.BadRequest("invalid reference format: %v", err)
	}
	return full, nil
}

// change replaces the names with the result of f, and writes the file if the names have changed.
func (t *tags) change(f func([]alias) ([]alias, error)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	next, err := f(slices.Clone(t.all))
	if err != nil || slices.Equal(next, t.all) {
		return err
	}
	if err := t.write(next); err != nil {
		return fmt.Errorf("names of images: %w", err)
	}
	t.all = next
	return nil
}

// write replaces the file. Without names there is no file.
func (t *tags) write(list []alias) error {
	if len(list) == 0 {
		if err := os.Remove(t.path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	p, err := record.EncodeImageNames(&record.ImageNames{Names: list})
	if err != nil {
		return err
	}
	if len(p) > maxTagsFile { // readTags would refuse the file, and all names would be lost
		return face.NewError(http.StatusTooManyRequests,
			fmt.Sprintf("%s would have %d bytes, want at most %d: remove some names", t.path, len(p), maxTagsFile))
	}
	return atomicfile.WriteDurable(t.path, p, 0o600)
}

// list returns all names. The caller must not change the result.
func (t *tags) list() []alias {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all
}

// find returns the alias with the given full name.
func (t *tags) find(full string) (alias, bool) {
	all := t.list()
	n := slices.IndexFunc(all, func(a alias) bool { return a.Name == full })
	if n < 0 {
		return alias{}, false
	}
	return all[n], true
}

// set adds an alias. If another alias has the name already, set replaces it, provided that
// mayChange returns no error for it.
func (t *tags) set(a alias, mayChange func(old alias) error) error {
	return t.change(func(all []alias) ([]alias, error) {
		n := slices.IndexFunc(all, func(old alias) bool { return old.Name == a.Name })
		if n >= 0 {
			if err := mayChange(all[n]); err != nil {
				return nil, err
			}
			all = slices.Delete(all, n, n+1)
		}
		all = append(all, a)
		ofImage := slices.DeleteFunc(slices.Clone(all), func(other alias) bool { return other.ID != a.ID })
		if err := checkShare(ofImage, a.Who, maxTagsOf, "this image"); err != nil {
			return nil, err
		}
		if err := checkShare(all, a.Who, maxTags, "images"); err != nil {
			return nil, err
		}
		return all, nil
	})
}

// checkShare returns an error if a list has more names than the limit (most), or if the given
// client has more of these names than its share. In the error, the argument "of" says to which
// images the names lead.
func checkShare(list []alias, who string, most int, of string) error {
	given := 0
	for _, a := range list {
		if a.Who == who {
			given++
		}
	}
	if share := owner.FairShare(who, most); share.Most > 0 && given > share.Most {
		return face.NewError(http.StatusTooManyRequests,
			fmt.Sprintf("this client has given %d names to %s: remove some", share.Most, of))
	}
	if len(list) > most {
		return face.NewError(http.StatusTooManyRequests,
			fmt.Sprintf("%s: there are %d names: remove some", of, most))
	}
	return nil
}

// remove removes the names for which f returns true.
func (t *tags) remove(f func(alias) bool) error {
	return t.change(func(all []alias) ([]alias, error) { return slices.DeleteFunc(all, f), nil })
}

// alias returns the alias with the given full name, if the client sees it.
func (s *Server) alias(view *tenancy.View, full string) (alias, bool) {
	a, ok := s.tags.find(full)
	return a, ok && sees(view, a)
}

// sees() reports whether a client sees an alias. No client sees an alias whose name a snapshot has
// taken. A client with a prefix sees only the names that it may give, and names for which snapshots
// were made.
func sees(view *tenancy.View, a alias) bool {
	return (a.Made || view.MayName("repo", a.Name) == nil) && !isTaken(view, a)
}

// isTaken reports whether a snapshot has taken the name of an alias. Such a snapshot has the name
// as its tag, and did not exist when the client gave the name. Without this rule, a client could
// give its own image the tag of a snapshot that is made later. Other clients that ask for this
// snapshot would then get containers of that client's image. A snapshot never takes a name that an
// administrator has given, because every client that may branch a sandbox can make a snapshot with
// any tag.
func isTaken(view *tenancy.View, a alias) bool {
	tag := tagOf(a.Name)
	if tag == "" || a.Admin {
		return false
	}
	d, err := view.Snapshot(tag)
	var missing *store.NotFoundError
	if err != nil {
		return !errors.As(err, &missing)
	}
	return d.ID != a.Over
}

// namesOf returns the names of a snapshot: its own tag, and then the names that clients have given
// to it. The tag is omitted if the snapshot was made for another name, or if the tag is now the
// name of another snapshot.
func (s *Server) namesOf(view *tenancy.View, d store.Detail) []string {
	own, shown := d.Tag+":"+latest, true
	names := []string{}
	for _, a := range s.tags.list() {
		isOf := a.Snapshot == d.Tag && a.ID == d.ID
		switch {
		case !isOf && a.Name != own, !sees(view, a):
		case !isOf:
			shown = false
		default:
			shown = shown && !a.Made
			names = append(names, a.Name)
		}
	}
	if shown {
		names = append([]string{own}, names...)
	}
	return names
}

// mayName returns an error if the client may not give a name to a snapshot. Every client may give a
// free name. If a name leads to another image, only the client that has given it and clients that
// may delete snapshots may change it.
func (s *Server) mayName(r *http.Request, full, snapshot string) error {
	if err := s.view(r).MayName("repo", full); err != nil {
		return err
	}
	if a, given := s.tags.find(full); given {
		if err := mayChange(r, a); err != nil {
			return err
		}
	}
	own := tagOf(full)
	if _, err := s.view(r).Snapshot(own); own != "" && own != snapshot && err == nil {
		return auth.From(r.Context()).Need(auth.Admin)
	}
	return nil
}

// mayChange returns an error if the client may not change or remove an alias.
func mayChange(r *http.Request, a alias) error {
	who := auth.From(r.Context())
	if a.Who == who.Who {
		return nil
	}
	return who.Need(auth.Admin)
}

// tidyTags removes the names of snapshots that do not exist any more, and names that snapshots have
// taken. If tag is not empty, it checks only the names that concern the snapshot with this tag.
func (s *Server) tidyTags(tag string) {
	view := s.Face.Host.For(owner.Owner{Name: owner.Anyone})
	err := s.tags.remove(func(a alias) bool {
		if tag != "" && a.Snapshot != tag && tagOf(a.Name) != tag {
			return false
		}
		d, err := view.Snapshot(a.Snapshot)
		return err != nil || d.ID != a.ID || isTaken(view, a)
	})
	if err != nil {
		s.Face.Log.Warn("names of deleted snapshots are kept", "error", err)
	}
}
