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
)

// tags has the names of images that are not the tags of their snapshots, in a file: names that
// clients have given with docker tag, and names that no snapshot can have. A name of this kind takes
// precedence over the snapshot with this tag. It ends with its snapshot.
type tags struct {
	path string

	mu  sync.Mutex
	all []alias
}

// alias is a further name of a snapshot.
type alias = record.ImageName

// Bounds on names.
const (
	maxTags     = 10_000
	maxTagsFile = 16 << 20 // bytes
)

// openTags reads the names in a file. A missing file has no names. A file that cannot be read is
// renamed, and a bad name is left out, because the daemon must start in any case.
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

// refused ends the name of a file that openTags could not read.
const refused = ".refused"

func readTags(path string) ([]alias, error) {
	i, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && i.Size() > maxTagsFile {
		err = fmt.Errorf("%s has %d bytes: want at most %d", path, i.Size(), maxTagsFile)
	}
	if err != nil {
		return nil, err
	}
	p, err := os.ReadFile(path)
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
// full name of a full name is this name itself. An error says that Docker does not permit the name.
func fullName(text string) (string, error) {
	repository, tag := split(text)
	full := repository + ":" + tag
	_, err := name.NewTag(full)
	if err == nil && slices.Contains(strings.Split(repository, "/"), "") {
		err = fmt.Errorf("%.300s has an empty part between slashes", repository)
	}
	if err != nil {
		return "", face.BadRequest("invalid reference format: %v", err)
	}
	return full, nil
}

// change replaces the names with the result of f, and writes the file.
func (t *tags) change(f func([]alias) []alias) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := f(slices.Clone(t.all))
	if len(next) > maxTags {
		return face.NewError(http.StatusTooManyRequests,
			fmt.Sprintf("images have more than %d names: remove some", maxTags))
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
	return atomicfile.WriteDurable(t.path, p, 0o600)
}

// list returns all names.
func (t *tags) list() []alias {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.all)
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

// set gives a name to a snapshot, in place of an older meaning of the name.
func (t *tags) set(a alias) error {
	return t.change(func(all []alias) []alias {
		return append(slices.DeleteFunc(all, func(old alias) bool { return old.Name == a.Name }), a)
	})
}

// remove removes the names for which f returns true.
func (t *tags) remove(f func(alias) bool) error {
	return t.change(func(all []alias) []alias { return slices.DeleteFunc(all, f) })
}

// of returns the names of a snapshot: its own tag, unless it was made for another name or another
// snapshot has this name now, and then the names that clients have given.
func (t *tags) of(tag, id string) []string {
	own, shown := tag+":"+latest, true
	names := []string{}
	for _, a := range t.list() {
		switch {
		case a.Snapshot == tag && a.ID == id:
			if a.Made {
				shown = false
			}
			if a.Name != own {
				names = append(names, a.Name)
			}
		case a.Name == own:
			shown = false
		}
	}
	if shown {
		names = append([]string{own}, names...)
	}
	return names
}

// mayName returns an error if the client may not give a name to a snapshot. Every client may give a
// free name. A name that leads to another image may be changed by the client that has given it, and
// by clients that may delete snapshots.
func (s *Server) mayName(r *http.Request, full, snapshot string) error {
	who := auth.From(r.Context())
	if a, taken := s.tags.find(full); taken && a.Who != who.Who {
		return who.Need(auth.Admin)
	}
	own := tagOf(full)
	if _, err := s.view(r).Snapshot(own); own != "" && own != snapshot && err == nil {
		return who.Need(auth.Admin)
	}
	return s.view(r).MayName("repo", full)
}

// tidyTags removes the names of snapshots that do not exist any more.
func (s *Server) tidyTags() error {
	view := s.Face.Host.For(owner.Owner{Name: owner.Anyone})
	isGone := func(a alias) bool {
		d, err := view.Snapshot(a.Snapshot)
		return err != nil || d.ID != a.ID
	}
	if !slices.ContainsFunc(s.tags.list(), isGone) {
		return nil
	}
	return s.tags.remove(isGone)
}
