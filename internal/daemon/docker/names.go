package docker

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"strings"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// containerID returns the id of a container. Docker's clients expect 64 hexadecimal digits, and the
// first 12 of them are the short form.
func containerID(sandboxID string) string { return digest("container " + sandboxID) }

// imageID returns the id of the image for the snapshot with the given ID.
func imageID(snapshotID string) string { return digestName + ":" + digest("image "+snapshotID) }

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// properName is Docker's rule for names of containers, plus a maximum length.
var properName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{1,127}$`)

// idForm matches the forms in which clients show the ids of containers and images.
var idForm = regexp.MustCompile(`^([0-9a-f]{12}|[0-9a-f]{64})$`)

// nameQuery returns the name in a request's query, without the slash that older clients put before
// it. The result is empty if the query has no name.
func nameQuery(r *http.Request) (string, error) {
	name := strings.TrimPrefix(r.URL.Query().Get("name"), "/")
	if name != "" && !properName.MatchString(name) {
		return "", face.BadRequest("Invalid container name (%.100s), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed", name)
	}
	if idForm.MatchString(name) || vmpool.IsID(name) {
		return "", face.BadRequest("name: %q has the form of an id: choose another name", name)
	}
	return name, nil
}

// prefixOf returns the prefix of the client of a request.
func prefixOf(r *http.Request) string { return string(auth.From(r.Context()).Prefix) }

// reserve reserves a name for a container. It returns an error if a client with the same prefix has
// given the name to a container. The caller gives the name to the container, and then calls the
// returned function. Clients with different prefixes can give the same name to different
// containers. If this were an error, it would tell a client about containers that the client is not
// allowed to see, and a client with a prefix could block names of a client that sees its
// containers.
func (s *Server) reserve(r *http.Request, n givenName) (release func(), err error) {
	release, free := s.book.reserve(n)
	if !free {
		return nil, conflict("Conflict. The container name %q is being given to another container.", "/"+n.name)
	}
	for _, i := range s.view(r).Sandboxes() {
		c := s.book.of(i)
		if i.State == sandbox.Stopping || c.name() != n.name || c.prefix() != n.prefix {
			continue
		}
		release()
		return nil, conflict("Conflict. The container name %q is already in use by container %q. "+
			"You have to remove (or rename) that container to be able to reuse that name.", "/"+n.name, containerID(i.ID))
	}
	return release, nil
}

// found is a container with the description of its sandbox.
type found struct {
	*container
	info sandbox.Info
}

// all returns the containers that the client of a request may see. Sandboxes of builds are not
// containers.
func (s *Server) all(r *http.Request) (list []found) {
	for _, i := range s.view(r).Sandboxes() {
		if isContainer(i) {
			list = append(list, found{s.book.of(i), i})
		}
	}
	return list
}

func isContainer(i sandbox.Info) bool {
	return !build.IsBuild(i) && i.State != sandbox.Starting && i.State != sandbox.Stopping
}

// find returns the container that a request names: by the id of its sandbox, its id, its name, or
// the beginning of its id, in this order. Names that clients with another prefix have given come
// last. With another order, a client could give names that direct the requests of other clients to
// its own containers.
func (s *Server) find(r *http.Request) (found, error) {
	asked := strings.TrimPrefix(r.PathValue("id"), "/")
	if asked == "" {
		return found{}, noContainer(asked)
	}
	// resolve() puts such an id into the request, so that the handler does not search again. No
	// name has this form.
	if vmpool.IsID(asked) {
		if i, err := s.view(r).Sandbox(asked); err == nil && isContainer(i) {
			audit.From(r.Context()).Sandbox = i.ID
			return found{s.book.of(i), i}, nil
		}
		return found{}, noContainer(asked)
	}
	all := s.all(r)
	for _, isAsked := range []func(c *found) bool{
		func(c *found) bool { return c.long == asked },
		func(c *found) bool { return c.name() == asked && c.prefix() == prefixOf(r) },
		func(c *found) bool { return strings.HasPrefix(c.long, asked) },
		func(c *found) bool { return c.name() == asked },
	} {
		var matches []found
		for n := range all {
			if isAsked(&all[n]) {
				matches = append(matches, all[n])
			}
		}
		switch len(matches) {
		case 0:
		case 1:
			audit.From(r.Context()).Sandbox = matches[0].id
			return matches[0], nil
		default:
			return found{}, face.BadRequest("Multiple IDs found with provided prefix: %.200s: use the whole id", asked)
		}
	}
	return found{}, noContainer(asked)
}

// findLocked is like find, and waits until no other operation works on the container.
func (s *Server) findLocked(r *http.Request) (c found, unlock func(), err error) {
	if c, err = s.find(r); err == nil {
		unlock, err = c.lock(r.Context())
	}
	return c, unlock, err
}
