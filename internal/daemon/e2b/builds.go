package e2b

import (
	"cmp"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/template"
	"github.com/forkd/forkd/internal/host/store"
)

// Bounds on requests about templates. The builder also compares the requested machine with the
// host.
const (
	maxCPUs    = 255
	maxMiB     = 1 << 20
	maxEntries = 100 // entries of a build's log in one answer; the SDKs request the remaining entries
)

// buildStatusOf returns the HTTP status for an error of the builder, or 0 for any other error.
func buildStatusOf(err error) int {
	switch {
	case errors.Is(err, template.ErrUnknown):
		return http.StatusNotFound
	case errors.Is(err, template.ErrStarted):
		return http.StatusBadRequest
	case errors.Is(err, template.ErrBusy):
		return http.StatusTooManyRequests
	case errors.Is(err, template.ErrTaken):
		return http.StatusConflict
	}
	return 0
}

// buildRequest requests the build of a template. Alias is the name in requests of older SDKs.
type buildRequest struct {
	Name      string   `json:"name"`
	Alias     string   `json:"alias"`
	Tags      []string `json:"tags"`
	CPUs      int64    `json:"cpuCount"`
	MemoryMiB int64    `json:"memoryMB"`
	FreeMiB   int64    `json:"minFreeDiskMb"`
}

// names() returns the name of the template, and the tags of the build. The first tag determines the
// tag of the snapshot.
func (req *buildRequest) names() (name string, tags []string, err error) {
	full := cmp.Or(req.Name, req.Alias)
	name, tag, tagged := strings.Cut(full, ":")
	if _, err := tagOf(full); err != nil {
		return "", nil, err
	}
	if tags = req.Tags; tagged {
		tags = append([]string{tag}, tags...)
	}
	if len(tags) == 0 {
		tags = []string{defaultTag}
	}
	tags, err = checkTags(name, tags)
	return name, tags, err
}

// ask returns the request to the builder, for a snapshot with the given tag.
func (req *buildRequest) ask(tag string) (template.Ask, error) {
	for _, n := range []struct {
		name      string
		got, most int64
	}{{"cpuCount", req.CPUs, maxCPUs}, {"memoryMB", req.MemoryMiB, maxMiB}, {"minFreeDiskMb", req.FreeMiB, maxMiB / 2}} {
		if n.got < 0 || n.got > n.most {
			return template.Ask{}, face.BadRequest("%s: %d: want 0 to %d", n.name, n.got, n.most)
		}
	}
	return template.Ask{Template: tag, CPUs: uint32(req.CPUs), MemoryMiB: uint64(req.MemoryMiB),
		FreeMiB: int(req.FreeMiB)}, nil
}

// mayMake returns an error if the client may not give a template this name. To replace a template,
// the client needs the right to delete it.
func (a *Server) mayMake(r *http.Request, tag string) error {
	if err := a.view(r).MayName("name", tag); err != nil {
		return err
	}
	d, err := a.view(r).Snapshot(tag)
	switch {
	case err != nil: // the template does not exist
		return nil
	case d.Writing:
		return &store.ExistsError{Tag: tag, InFlight: true}
	case d.Leases > 0:
		return &store.InUseError{Tag: tag, Leases: d.Leases}
	}
	return auth.From(r.Context()).Need(auth.Admin)
}

// requestBuild accepts a build. The build starts when the client has sent its files.
func (a *Server) requestBuild(w http.ResponseWriter, r *http.Request) error {
	var req buildRequest
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	name, tags, err := req.names()
	if err != nil {
		return err
	}
	ask, err := req.ask(snapshotTag(name, tags[0]))
	if err == nil {
		err = a.mayMake(r, ask.Template)
	}
	t := a.tagger(r)
	for _, tag := range tags {
		if err == nil {
			err = t.mayAssign(t.tags.of(name, tag), name, tag)
		}
	}
	if err != nil {
		return err
	}
	ask.Made = func() error { return t.made(name, tags, ask.Template) }
	b, err := a.Builder.Request(auth.From(r.Context()).Who, ask)
	if err != nil {
		return err
	}
	return face.WriteJSON(w, r, http.StatusAccepted, map[string]any{"templateID": ask.Template, "buildID": b.ID,
		"public": false, "names": []string{ask.Template}, "aliases": []string{ask.Template}, "tags": tags})
}

// findBuild returns the caller's build with the given id. If id is empty, it returns the caller's
// build that has not started.
func (a *Server) findBuild(r *http.Request, id string) (*template.Build, error) {
	tag, err := tagOf(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	return a.Builder.Find(auth.From(r.Context()).Who, tag, id)
}

// registry holds the credentials for fetching an image. For the registries of cloud providers, the
// daemon uses the host's own credentials.
type registry struct {
	Type     string `json:"type"`
	Username string `json:"username"`
	Password string `json:"password"`
}

func (r *registry) login() (*build.Login, error) {
	switch {
	case r == nil:
		return nil, nil
	case r.Type != "registry":
		return nil, unsupported("fromImageRegistry: "+strconv.Quote(r.Type),
			"log in as the daemon's user with 'docker login', or give a user name and a password")
	}
	return &build.Login{User: r.Username, Password: r.Password}, nil
}

// startRequest describes the build of a template.
type startRequest struct {
	FromImage    string          `json:"fromImage"`
	FromTemplate string          `json:"fromTemplate"`
	Registry     *registry       `json:"fromImageRegistry"`
	StartCmd     string          `json:"startCmd"`
	ReadyCmd     string          `json:"readyCmd"`
	Steps        []template.Step `json:"steps"`
	Force        bool            `json:"force"`
}

// baseImage is the image that the SDKs build on by default. Builds use the template baseTemplate
// instead, so they need no registry. That template contains the image and everything that E2B adds
// to every image.
const (
	baseImage    = "e2bdev/base"
	baseTemplate = "base"
)

func (a *Server) startBuild(w http.ResponseWriter, r *http.Request) error {
	var req startRequest
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	b, err := a.findBuild(r, r.PathValue("build"))
	if err != nil {
		return err
	}
	login, err := req.Registry.login()
	if err != nil {
		return err
	}
	if strings.TrimSuffix(req.FromImage, ":latest") == baseImage {
		req.FromImage, req.FromTemplate = "", baseTemplate
	}
	notAdmin := auth.From(r.Context()).Need(auth.Admin)
	plan := template.Plan{FromImage: req.FromImage, Login: login, StartCmd: req.StartCmd, ReadyCmd: req.ReadyCmd,
		Steps: req.Steps, Force: req.Force, MayReplace: notAdmin == nil}
	if req.FromTemplate != "" {
		i, err := a.snapshotOf(r, req.FromTemplate)
		if err != nil {
			return err
		}
		plan.FromTemplate = i.Tag
	}
	if plan.FromImage != "" && notAdmin != nil { // fetching and unpacking an image uses the host's resources
		return notAdmin
	}
	if err := a.mayMake(r, b.Template); err != nil {
		return err
	}
	if err := a.Builder.Start(r.Context(), b, plan); err != nil {
		return err
	}
	w.Header().Set("Content-Length", "0") // the JavaScript SDK accepts an empty answer only with this header
	w.WriteHeader(http.StatusAccepted)
	return nil
}
