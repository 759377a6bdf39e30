package docker

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"strings"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// containerID returns the id of a container. Docker's clients expect 64 hexadecimal digits, and the
// first 12 of them are the short form.
func containerID(sandboxID string) string { return digest("container " + sandboxID) }

// imageID returns the id of the image for the snapshot with the given ID.
func imageID(snapshotID string) string { return "sha256:" + digest("image "+snapshotID) }

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// properName is the rule of Docker for names of containers, with a bound.
var properName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{1,127}$`)

// nameQuery returns the name in a request's query, without the slash that precedes it in older
// clients. The result is empty if there is none.
func nameQuery(r *http.Request) (string, error) {
	name := strings.TrimPrefix(r.URL.Query().Get("name"), "/")
	if name != "" && !properName.MatchString(name) {
		return "", face.BadRequest("Invalid container name (%.100s), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed", name)
	}
	return name, nil
}

// found is a container with the description of its sandbox.
type found struct {
	*container
	info sandbox.Info
}

// all returns the containers that the client of a request may see. Sandboxes of builds are none.
func (s *Server) all(r *http.Request) (list []found) {
	for _, i := range s.view(r).Sandboxes() {
		if !build.IsBuild(i) && i.State != sandbox.Starting && i.State != sandbox.Stopping {
			list = append(list, found{s.book.of(i), i})
		}
	}
	return list
}

// find returns the container that a request names: by its name, its id, the beginning of its id, or
// the id of its sandbox.
func (s *Server) find(r *http.Request) (found, error) {
	asked := strings.TrimPrefix(r.PathValue("id"), "/")
	var begin []found
	for _, c := range s.all(r) {
		id := containerID(c.id)
		if asked == c.name() || asked == id || asked == c.id {
			begin = []found{c}
			break
		}
		if asked != "" && strings.HasPrefix(id, asked) {
			begin = append(begin, c)
		}
	}
	switch len(begin) {
	case 0:
		return found{}, noContainer(asked)
	case 1:
		audit.From(r.Context()).Sandbox = begin[0].id
		return begin[0], nil
	}
	return found{}, face.BadRequest("Multiple IDs found with provided prefix: %.200s", asked)
}
