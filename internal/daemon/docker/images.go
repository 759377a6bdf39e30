package docker

import (
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/tenancy"
)

// image is a snapshot in Docker's terms.
type image struct {
	snapshot string // tag of the snapshot
	ID       string
	names    []string
	store.Detail
}

// The docker command adds the prefixes dockerHub and library to names without a registry. The
// default tag is latest.
const (
	dockerHub = "docker.io/"
	library   = "library/"
	latest    = "latest"
)

// hexID matches the id of an image, whole or shortened. Clients show the first shortID digits.
var hexID = regexp.MustCompile(`^(sha256:)?[0-9a-f]{4,64}$`)

const (
	digestName = "sha256"
	shortID    = 12
	fullID     = 64
)

// split divides the name of an image into its repository and its tag. The default tag is "latest".
// The repository does not begin with dockerHub or library, even if the name repeats them.
func split(name string) (repository, tag string) {
	for strings.HasPrefix(name, dockerHub) || strings.HasPrefix(name, library) {
		name = strings.TrimPrefix(strings.TrimPrefix(name, dockerHub), library)
	}
	colon := strings.LastIndexByte(name, ':')
	if colon < 0 || strings.Contains(name[colon:], "/") {
		return name, latest
	}
	return name[:colon], name[colon+1:]
}

// tagOf returns the tag of the snapshot for an image's name: NAME for NAME and NAME:latest, and
// NAME.TAG for NAME:TAG, as with E2B's templates. It returns "" for a name that no snapshot can have,
// such as a name with a slash.
func tagOf(name string) string {
	repository, tag := split(name)
	if tag != latest {
		repository += "." + tag
	}
	if snapshot.CheckTag(repository) != nil {
		return ""
	}
	return repository
}

// imageOf returns the image with a name or an id. The id may be shortened. As in Docker, a whole id
// always means the image with this id, and a shortened id means an image only if no image has this
// text as its name. But if the text has shortID digits or more, as in the lists of clients, imageOf
// looks for an id first. So a snapshot whose tag looks like an id cannot stand in for another
// image.
func (s *Server) imageOf(r *http.Request, name string) (image, error) {
	digits, isDigest := strings.CutPrefix(name, digestName+":")
	isID := hexID.MatchString(name)
	if isID && (isDigest || len(digits) >= shortID) {
		img, err := s.imageByID(r, digits)
		if err != nil || img.ID != "" {
			return img, err
		}
		if isDigest || len(digits) == fullID {
			return img, noImage(name)
		}
	}
	view := s.view(r)
	if full, err := fullName(name); err == nil {
		if a, ok := s.alias(view, full); ok {
			if d, err := view.Snapshot(a.Snapshot); err == nil && d.ID == a.ID {
				return s.imageFrom(view, d), nil
			}
		}
	}
	if tag := tagOf(name); tag != "" {
		if d, err := view.Snapshot(tag); err == nil {
			return s.imageFrom(view, d), nil
		}
	}
	if isID {
		if img, err := s.imageByID(r, digits); err != nil || img.ID != "" {
			return img, err
		}
	}
	return image{}, noImage(name)
}

// imageByID returns the image whose id begins with the given digits. If there is no such image, it
// returns an image without an id.
func (s *Server) imageByID(r *http.Request, digits string) (img image, err error) {
	for _, i := range s.images(r) {
		if !strings.HasPrefix(i.ID, digestName+":"+digits) {
			continue
		}
		if img.ID != "" {
			return img, face.BadRequest("image %s: the ids of several images begin so: use more digits", digits)
		}
		img = i
	}
	return img, nil
}

func (s *Server) imageFrom(view *tenancy.View, d store.Detail) image {
	return image{snapshot: d.Tag, ID: imageID(d.ID), names: s.namesOf(view, d), Detail: d}
}

// images() returns the images that the client of a request may see, without the fields Ancestors,
// Dependents and Line. Snapshots that exist only for sandboxes or for the cache of builds are not
// images.
func (s *Server) images(r *http.Request) (list []image) {
	view := s.view(r)
	for _, i := range view.Snapshots() {
		if i.Transient || i.Writing || snapshot.IsStepTag(i.Tag) {
			continue
		}
		if d, err := view.Snapshot(i.Tag); err == nil { // otherwise it has been deleted
			d.Ancestors, d.Dependents, d.Line = nil, nil, nil // each could be as long as the list
			list = append(list, s.imageFrom(view, d))
		}
	}
	return list
}

// size returns the space that an image takes on the disk in addition to the image below it.
func (i *image) size() uint64 { return i.MemoryPhysical + i.DiskPhysical + i.StateBytes }

// imageSummary describes an image in a list.
type imageSummary struct {
	ID          string            `json:"Id"`
	ParentID    string            `json:"ParentId"`
	RepoTags    []string          `json:"RepoTags"`
	RepoDigests []string          `json:"RepoDigests"`
	Created     int64             `json:"Created"` // seconds of Unix time
	Size        uint64            `json:"Size"`
	SharedSize  int64             `json:"SharedSize"` // -1: not computed
	VirtualSize uint64            `json:"VirtualSize"`
	Labels      map[string]string `json:"Labels"`
	Containers  int               `json:"Containers"` // -1: not computed
}

func (s *Server) listImages(w http.ResponseWriter, r *http.Request) error {
	wanted, err := filtersOf(r, "reference", "label", "dangling", "before", "since", "until")
	if err != nil {
		return err
	}
	for _, name := range []string{"before", "since", "until"} {
		if len(wanted[name]) > 0 {
			return unsupported("filter "+name, "compare the times in the list")
		}
	}
	dangling := wanted.has("dangling", "true") || wanted.has("dangling", "1")
	list := slices.DeleteFunc(s.images(r), func(i image) bool {
		return dangling && len(i.names) > 0 || !wanted.reference(i.names) || !wanted.labels(i.labels())
	})
	return face.WriteArray(w, list, func(i image) imageSummary {
		return imageSummary{ID: i.ID, RepoTags: i.names, RepoDigests: []string{}, Created: i.Created.Unix(), Size: i.size(),
			VirtualSize: i.size(), SharedSize: -1, Labels: i.labels(), Containers: -1}
	})
}

// labels() returns the labels of an image. The result is never nil.
func (i *image) labels() map[string]string {
	if i.Branch != nil && i.Branch.Labels != nil {
		return i.Branch.Labels
	}
	return map[string]string{}
}

// image answers a request about one image. The path has the name, which may contain slashes, and
// then the kind of information.
func (s *Server) image(w http.ResponseWriter, r *http.Request) error {
	path := r.PathValue("name")
	slash := strings.LastIndexByte(path, '/')
	if slash < 0 {
		return s.unserved(w, r)
	}
	switch name := path[:slash]; path[slash+1:] {
	case "json":
		img, err := s.imageOf(r, name)
		if err != nil {
			return err
		}
		return face.WriteJSON(w, r, http.StatusOK, inspectionOf(r, img))
	case "history":
		img, err := s.imageOf(r, name)
		if err != nil {
			return err
		}
		return face.WriteJSON(w, r, http.StatusOK, s.historyOf(r, img))
	case "get":
		return unsupported("GET /images/"+name+"/get", "use forkd pack, which writes a snapshot to an archive")
	}
	return s.unserved(w, r)
}

// imageInspection describes an image in detail.
type imageInspection struct {
	ID           string      `json:"Id"`
	RepoTags     []string    `json:"RepoTags"`
	RepoDigests  []string    `json:"RepoDigests"`
	Parent       string      `json:"Parent"`
	Comment      string      `json:"Comment"`
	Created      string      `json:"Created"`
	Author       string      `json:"Author"`
	Architecture string      `json:"Architecture"`
	OS           string      `json:"Os"`
	Size         uint64      `json:"Size"`
	VirtualSize  uint64      `json:"VirtualSize"`
	Config       imageConfig `json:"Config"`
	GraphDriver  graphDriver `json:"GraphDriver"`
	RootFS       rootFS      `json:"RootFS"`
	Metadata     struct{}    `json:"Metadata"`
}

type imageConfig struct {
	Env          []string            `json:"Env"`
	Cmd          []string            `json:"Cmd"`
	Entrypoint   []string            `json:"Entrypoint"`
	User         string              `json:"User"`
	WorkingDir   string              `json:"WorkingDir"`
	Labels       map[string]string   `json:"Labels"`
	ExposedPorts map[string]struct{} `json:"ExposedPorts,omitempty"`
	Volumes      map[string]struct{} `json:"Volumes,omitempty"`
}

type graphDriver struct {
	Name string            `json:"Name"`
	Data map[string]string `json:"Data"`
}

type rootFS struct {
	Type   string   `json:"Type"`
	Layers []string `json:"Layers"`
}

// runtimeName is the name of this daemon where Docker names its runtime or its storage.
const runtimeName = "forkd"

func inspectionOf(r *http.Request, i image) imageInspection {
	env := []string{}
	if mayReadSecrets(r) {
		for name, value := range i.Guest.Env {
			env = append(env, name+"="+value)
		}
	}
	return imageInspection{ID: i.ID, RepoTags: i.names, RepoDigests: []string{}, Created: docktime(i.Created),
		Comment: i.labels()[commentLabel], Author: i.labels()[authorLabel],
		Architecture: "amd64", OS: "linux", Size: i.size(), VirtualSize: i.size(),
		Config:      imageConfig{Env: env, User: i.Guest.User, WorkingDir: i.Guest.Dir, Labels: i.labels()},
		GraphDriver: graphDriver{Name: runtimeName, Data: map[string]string{}},
		RootFS:      rootFS{Type: "layers", Layers: []string{i.ID}}}
}

// historyEntry describes an image, or a snapshot on which it builds.
type historyEntry struct {
	ID        string   `json:"Id"`
	Created   int64    `json:"Created"`
	CreatedBy string   `json:"CreatedBy"`
	Tags      []string `json:"Tags"`
	Size      uint64   `json:"Size"`
	Comment   string   `json:"Comment"`
}

// historyOf returns an image and the snapshots on which it builds, latest first.
func (s *Server) historyOf(r *http.Request, img image) []historyEntry {
	list, view := []historyEntry{entryOf(img)}, s.view(r)
	d, err := view.Snapshot(img.snapshot)
	if err != nil {
		return list // it has just been deleted
	}
	for _, tag := range slices.Backward(d.Ancestors) {
		d, err := view.Snapshot(tag)
		if err != nil {
			continue
		}
		list = append(list, entryOf(s.imageFrom(view, d)))
	}
	return list
}

func entryOf(i image) historyEntry {
	return historyEntry{ID: i.ID, Created: i.Created.Unix(), CreatedBy: runtimeName, Tags: i.names, Size: i.size()}
}
