package docker

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// Statuses of containers, in Docker's terms.
const (
	created = "created"
	running = "running"
	paused  = "paused"
	exited  = "exited"
)

// state is the changing part of a container. Its status is created, running or exited. The status
// is empty for a sandbox of another API.
type state = record.Container

// container is the part of a container that is not in its sandbox.
type container struct {
	id   string        // id of the sandbox
	long string        // containerID(id)
	ops  chan struct{} // lock for operations such as start and stop; has room for one value
	out  *output       // output of the main process

	mu       sync.Mutex
	state    state
	gone     bool          // the sandbox has been deleted
	main     *process      // the main process; nil if it does not run
	changed  chan struct{} // closed and replaced when state, main or gone changes
	suspends *time.Timer   // suspends the sandbox of an exited container
	users    int           // uses of the guest, such as transfers of files; 0: the sandbox can be suspended
	ports    []listener    // published ports that are open
	last     sandbox.Info  // description of the sandbox at the latest event
}

func newContainer(id string) *container {
	return &container{id: id, long: containerID(id), ops: make(chan struct{}, 1), out: newOutput(maxLog),
		changed: make(chan struct{})}
}

func (c *container) notifyLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *container) notify() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notifyLocked()
}

// lock waits until no other operation works on the container.
func (c *container) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case c.ops <- struct{}{}:
		return func() { <-c.ops }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// now() returns the state, whether the container is gone, and a channel that is closed at the next
// change.
func (c *container) now() (s state, gone bool, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state, c.gone, c.changed
}

// name returns the container's name.
func (c *container) name() string {
	s, _, _ := c.now()
	if s.Name != "" {
		return s.Name
	}
	return c.id
}

// prefix returns the prefix of the client that gave the container its name.
func (c *container) prefix() string {
	s, _, _ := c.now()
	return s.Prefix
}

// process returns the main process, or nil if it does not run.
func (c *container) process() *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.main
}

// removesItself reports whether a container must be removed when its main process has ended.
func (c *container) removesItself(sp *spec) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return sp.Host.AutoRemove && !c.state.Restarts
}

// isOwn reports whether this API has made the container.
func (c *container) isOwn() bool {
	s, _, _ := c.now()
	return s.Status != ""
}

// statusOf returns the status of a container whose sandbox has the given description. The sandbox
// of an exited container can still be running, because files can be copied from it.
func statusOf(s state, i sandbox.Info) string {
	switch {
	case i.State == sandbox.Exited:
		return exited
	case s.Status == created, s.Status == exited:
		return s.Status
	case i.State == sandbox.Suspended && s.Status == "":
		return exited
	case i.State == sandbox.Paused, i.State == sandbox.Suspended:
		return paused
	}
	return running
}

func (f *found) status() string {
	s, _, _ := f.now()
	return statusOf(s, f.info)
}

// spec is the fixed part of a container. It is in the annotation of the container's sandbox.
type spec struct {
	Config config `json:"config"`
	Host   host   `json:"host"`
	Image  string `json:"image"` // id of the image
}

// annotation is the annotation of a sandbox that this package makes. Annotations of other packages
// do not have its field.
type annotation struct {
	Docker *spec `json:"docker"`
}

// ownSpec returns the fixed part of a container that this API has made, or nil.
func ownSpec(i sandbox.Info) *spec {
	var n annotation
	if len(i.Annotation) == 0 || json.Unmarshal(i.Annotation, &n) != nil {
		return nil
	}
	return n.Docker
}

// specOf returns the fixed part of a container. For a sandbox of another API, it has only the
// fields that the description of the sandbox gives.
func specOf(i sandbox.Info) spec {
	if sp := ownSpec(i); sp != nil {
		return *sp
	}
	return spec{Config: config{Image: i.SnapshotTag}, Image: imageID(i.StateID)}
}

// args() returns the command of the main process. It is empty if the container has no main process.
func (s *spec) args() []string {
	return append(append([]string{}, s.Config.Entrypoint...), s.Config.Cmd...)
}

// envOf returns the variables in a list of NAME=VALUE. A name without a value sets nothing.
func envOf(list []string) map[string]string {
	env := make(map[string]string, len(list))
	for _, v := range list {
		if name, value, ok := strings.Cut(v, "="); ok {
			env[name] = value
		}
	}
	return env
}
