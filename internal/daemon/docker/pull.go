package docker

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/build/dockerfile"
	"github.com/forkd/forkd/internal/build/plan"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/registry"
)

// authHeader carries the client's credentials for the registry, as base64 of JSON.
const authHeader = "X-Registry-Auth"

// pull builds a snapshot that boots from a container image in a registry. If the image exists
// already, pull does not compare it with the registry.
func (s *Server) pull(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	from, tag := q.Get("fromImage"), q.Get("tag")
	switch {
	case q.Get("fromSrc") != "":
		return unsupported("fromSrc", "use forkd build")
	case strings.Contains(tag, ":") || strings.Contains(from, "@"):
		return unsupported("a digest", "name a tag")
	case from == "":
		return face.BadRequest("fromImage: missing: want the name of an image")
	}
	if err := checkPlatform(r); err != nil {
		return err
	}
	if tag != "" {
		from += ":" + tag
	}
	full, err := fullName(from)
	if err != nil {
		return err
	}
	out := &progress{w: w, rc: http.NewResponseController(w), stall: s.Face.Limits.Stall}
	if img, err := s.imageOf(r, full); err == nil {
		if !s.isTrusted(r, full, img) {
			return conflict("the name %.300s leads to an image that no pull has made, and that may differ from the image in "+
				"the registry: remove the name with docker rmi, and pull again", full)
		}
		out.say("", "Status: Image is up to date for "+full)
		return nil
	}
	if err := auth.From(r.Context()).Need(auth.Admin); err != nil { // the builds of /v1 need this scope too
		return err
	}
	tag = pulledTag(full)
	if err := s.mayName(r, full, tag); err != nil {
		return err
	}
	login, err := loginOf(r, full)
	if err != nil {
		return err
	}
	// The last line is sent after the build has released its place, because a client may start its next
	// pull as soon as it reads the line.
	err = s.build(r, out, full, tag, login)
	switch {
	case err == nil:
		out.say("", "Status: Downloaded newer image for "+full)
	case out.hasBegun():
		out.fail(err)
	default:
		return err
	}
	return nil
}

// isTrusted reports whether a pull may treat an existing image as the registry's image. To be
// trusted, the image must have been made by a pull, or named by an administrator or by the client
// itself. The image's tag proves nothing, because every client that may branch a sandbox can make a
// snapshot with that tag.
func (s *Server) isTrusted(r *http.Request, full string, img image) bool {
	a, ok := s.alias(s.view(r), full)
	return ok && a.ID == img.Detail.ID && (a.Admin || a.Who == auth.From(r.Context()).Who)
}

// build builds the snapshot of a container image, with the given tag.
func (s *Server) build(r *http.Request, out *progress, full, tag string, logins map[string]build.Login) error {
	who := auth.From(r.Context()).Who
	leave, err := s.Builds.Enter(who)
	if err != nil {
		return face.NewError(http.StatusServiceUnavailable, err.Error())
	}
	defer leave()
	files, err := s.Builds.NewContext(who)
	if err != nil {
		return err
	}
	defer func() {
		if err := files.Close(); err != nil {
			s.Face.Log.Warn("remove a build context", "error", err)
		}
	}()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	out.gone = cancel
	req := build.Request{Who: who, Admin: true, Tag: tag, Logins: logins,
		Dockerfile: dockerfile.Request{Name: "Dockerfile", Text: []byte("FROM " + reference(full) + "\n")}}
	repository, version := split(full)
	out.say(version, "Pulling from "+repository)
	if _, err := s.Builds.Build(ctx, req, files, out); err != nil {
		return err
	}
	d, err := s.view(r).Snapshot(req.Tag)
	if err != nil {
		return err
	}
	if err := s.setAlias(r, full, d, true); err != nil {
		return err
	}
	s.feed.emit(imageEvent("pull", imageID(d.ID), full))
	return nil
}

// reference returns the name of an image with its registry.
func reference(full string) string {
	first, _, several := strings.Cut(full, "/")
	switch {
	case !several:
		return dockerHub + library + full
	case strings.ContainsAny(first, ".:") || first == "localhost":
		return full
	}
	return dockerHub + full
}

var notInTag = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// pulledTag returns the tag of the snapshot for a pulled image. If no snapshot can have the name of
// the image as its tag, the tag ends with random characters. If a client could predict the tag, it
// could make a snapshot with this tag, and the image could not be pulled.
func pulledTag(full string) string {
	if tag := tagOf(full); tag != "" {
		return tag
	}
	const most, distinct = 60, 12 // number of characters taken from the name, and number of random characters
	text := strings.Trim(notInTag.ReplaceAllString(full, "-"), ".-")
	return text[:min(len(text), most)] + "-" + strings.ToLower(rand.Text()[:distinct])
}

// loginOf returns the credentials in a request, for the registry of the image only.
func loginOf(r *http.Request, full string) (map[string]build.Login, error) {
	text := r.Header.Get(authHeader)
	if text == "" {
		return nil, nil
	}
	p, err := base64.URLEncoding.DecodeString(text)
	if err != nil {
		p, err = base64.RawURLEncoding.DecodeString(text)
	}
	var given struct{ Username, Password, IdentityToken, RegistryToken string }
	if err != nil || len(p) > 0 && json.Unmarshal(p, &given) != nil {
		return nil, face.BadRequest("%s: want base64 of a JSON object", authHeader)
	}
	l := build.Login{User: given.Username, Password: given.Password, IdentityToken: given.IdentityToken,
		RegistryToken: given.RegistryToken}
	if l == (build.Login{}) {
		return nil, nil
	}
	return map[string]build.Login{registry.Of(reference(full)): l}, nil
}

// progress sends the progress of a build as lines of JSON. It implements build.Observer.
type progress struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	stall time.Duration // maximum time for which a write waits for the client
	gone  func()        // called when the client has left; may be nil

	mu    sync.Mutex
	begun bool
	steps []string
}

// line is one message about the progress.
type line struct {
	Status string       `json:"status,omitempty"`
	ID     string       `json:"id,omitempty"`
	Detail *errorDetail `json:"errorDetail,omitempty"`
	Error  string       `json:"error,omitempty"`
}

type errorDetail struct {
	Message string `json:"message"`
}

func (p *progress) send(l line) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.begun {
		p.w.Header().Set("Content-Type", "application/json")
		p.begun = true
	}
	_ = p.rc.SetWriteDeadline(time.Now().Add(p.stall)) // connections of some tests have no deadlines
	defer p.rc.SetWriteDeadline(time.Time{})           // a later answer on the connection has its own deadline
	err := json.NewEncoder(p.w).Encode(l)
	if err == nil {
		err = p.rc.Flush()
	}
	if err != nil && p.gone != nil {
		p.gone()
	}
}

func (p *progress) say(id, text string) { p.send(line{ID: id, Status: text}) }

func (p *progress) fail(err error) {
	p.send(line{Detail: &errorDetail{err.Error()}, Error: err.Error()})
}

func (p *progress) hasBegun() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.begun
}

// Planned implements build.Observer.
func (p *progress) Planned(made *plan.Plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := range made.Steps {
		p.steps = append(p.steps, made.Steps[n].Name)
	}
}

// Step implements build.Observer.
func (p *progress) Step(number int, state string, _ time.Duration) {
	p.mu.Lock()
	name := ""
	if number >= 0 && number < len(p.steps) {
		name = p.steps[number] + ": "
	}
	p.mu.Unlock()
	p.say("", name+state)
}

// Output implements build.Observer.
func (p *progress) Output(_ int, text string) { p.say("", text) }
