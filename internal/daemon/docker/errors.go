package docker

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
)

// failure is the body of an error. Docker's clients read only the message.
type failure struct {
	Message string `json:"message"`
	Code    string `json:"code"` // see docs/errors.md
}

// fail answers with an error in Docker's form.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := face.StatusOf(err)
	s.Face.FailAs(w, r, err, status, func(w http.ResponseWriter, err error) {
		problem := face.ProblemOf(err)
		p, _ := json.Marshal(failure{problem.Detail, problem.Code}) // a struct of text can always be encoded
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write(append(p, '\n')) // fails only if the client has left
	})
}

// groups() returns the parts of Docker's API that forkd does not serve. The keys are the first
// elements of paths, and the values say what to use instead.
func groups() map[string]string {
	return map[string]string{
		"networks":     "each container has a network of its own; use -p, or forkd's network policies (docs/network.md)",
		"volumes":      "use forkd volume, and mount with forkd run or forkd fork -v NAME:/PATH (docs/volumes.md)",
		"build":        "use forkd build, which builds a snapshot from a Dockerfile",
		"session":      "use forkd build, which builds a snapshot from a Dockerfile",
		"grpc":         "use forkd build, which builds a snapshot from a Dockerfile",
		"swarm":        "a daemon serves one host",
		"services":     "a daemon serves one host",
		"nodes":        "a daemon serves one host",
		"tasks":        "a daemon serves one host",
		"secrets":      "use forkd's secrets (docs/network.md)",
		"configs":      "copy the files (docker cp)",
		"plugins":      "forkd has no plugins",
		"distribution": "ask the registry",
	}
}

// unserved answers a request that no route serves.
func (s *Server) unserved(_ http.ResponseWriter, r *http.Request) error {
	first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if instead, ok := groups()[first]; ok {
		return unsupported(r.Method+" /"+first, instead)
	}
	return notFound("page not found: forkd does not serve %.20s %.200s (docs/docker.md)", r.Method, r.URL.Path)
}

// unsupported returns an error for a feature of Docker that forkd lacks. The text says what to do.
func unsupported(name, instead string) error {
	return face.BadRequest("%.200s: forkd does not support this: %s", name, instead)
}

// missingError is an error with status 404 in Docker's words. Its cause is the error that forkd's
// own API would return. The missingError has the error code of this cause.
type missingError struct {
	text  string
	cause error
}

func (e *missingError) Error() string { return e.text }

func (e *missingError) Unwrap() error { return e.cause }

// noContainer returns the error for a name or an id that no container has.
func noContainer(name string) error {
	return &missingError{fmt.Sprintf("No such container: %.200s", name), &sandbox.NotFoundError{ID: name}}
}

// noImage returns the error for a name that no image has.
func noImage(name string) error {
	repository, tag := split(name)
	return &missingError{fmt.Sprintf("No such image: %.300s:%.150s", repository, tag), &store.NotFoundError{Tag: name}}
}

// notFound returns an error with status 404 for things other than containers and images.
func notFound(format string, args ...any) error {
	return face.NewError(http.StatusNotFound, fmt.Sprintf(format, args...))
}

// conflict returns an error with status 409.
func conflict(format string, args ...any) error {
	return face.NewError(http.StatusConflict, fmt.Sprintf(format, args...))
}
