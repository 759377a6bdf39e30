package docker

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/host/sandbox"
)

// Types of events.
const (
	ofContainer = "container"
	ofImage     = "image"
)

// message is an event in Docker's form.
type message struct {
	Status   string `json:"status,omitempty"`
	ID       string `json:"id,omitempty"`
	From     string `json:"from,omitempty"`
	Type     string
	Action   string
	Actor    actor
	Scope    string `json:"scope"`
	Time     int64  `json:"time"`
	TimeNano int64  `json:"timeNano"`
}

type actor struct {
	ID         string
	Attributes map[string]string
}

func imageEvent(action, id, name string) message {
	return message{ID: id, Type: ofImage, Action: action, Actor: actor{id, map[string]string{"name": name}}}
}

// event announces a change of a container. If the state in i is Stopping, the sandbox has been
// deleted, and its last description is used. The attributes are pairs of a name and a value.
func (s *Server) event(action string, c *container, i sandbox.Info, attributes ...string) {
	c.mu.Lock()
	if i.State == sandbox.Stopping {
		i = c.last
	}
	c.last = i
	c.mu.Unlock()
	sp := specOf(i)
	m := message{ID: containerID(c.id), From: sp.Config.Image, Type: ofContainer, Action: action,
		Actor: actor{containerID(c.id), map[string]string{}}}
	maps.Copy(m.Actor.Attributes, i.Labels)
	m.Actor.Attributes["image"], m.Actor.Attributes["name"] = sp.Config.Image, c.name()
	for n := 0; n+1 < len(attributes); n += 2 {
		m.Actor.Attributes[attributes[n]] = attributes[n+1]
	}
	s.feed.emit(m)
}

// Bounds on events.
const (
	maxPast  = 256 // events that are kept for later clients
	maxQueue = 256 // events that wait for one client; if there are more, the client is disconnected
)

// feed passes events to clients, and keeps the latest ones.
type feed struct {
	mu      sync.Mutex
	past    []message // oldest first
	clients map[chan message]bool
}

func newFeed() *feed { return &feed{clients: make(map[chan message]bool)} }

func (f *feed) emit(m message) {
	now := time.Now()
	m.Status, m.Scope, m.Time, m.TimeNano = m.Action, "local", now.Unix(), now.UnixNano()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.past = append(f.past, m); len(f.past) > maxPast {
		f.past = append(f.past[:0], f.past[1:]...)
	}
	for c := range f.clients {
		select {
		case c <- m:
		default: // the client is too slow
			delete(f.clients, c)
			close(c)
		}
	}
}

// follow returns the kept events, and a channel of the later events. The channel is closed if the
// client is too slow.
func (f *feed) follow() (past []message, later chan message, stop func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	later = make(chan message, maxQueue)
	f.clients[later] = true
	return append([]message(nil), f.past...), later, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.clients, later)
	}
}

// events() sends events to a client as they occur.
func (s *Server) events(w http.ResponseWriter, r *http.Request) error {
	if err := s.view(r).Limited("events of all containers"); err != nil {
		return err
	}
	wanted, err := filtersOf(r, "type", "event", "container", "image", "label", "scope")
	if err != nil {
		return err
	}
	since, err := timeQuery(r, "since")
	if err != nil {
		return err
	}
	until, err := timeQuery(r, "until")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	if !until.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	past, later, stop := s.feed.follow()
	defer stop()
	w.Header().Set("Content-Type", "application/json")
	out, rc := json.NewEncoder(w), http.NewResponseController(w)
	send := func(m message) bool {
		if !m.satisfies(wanted) {
			return true
		}
		_ = rc.SetWriteDeadline(time.Now().Add(s.Face.Limits.Stall)) // connections of some tests have no deadlines
		ok := out.Encode(m) == nil && rc.Flush() == nil
		_ = rc.SetWriteDeadline(time.Time{})
		return ok
	}
	if rc.Flush() != nil {
		return nil
	}
	for _, m := range past {
		at := time.Unix(0, m.TimeNano)
		if !since.IsZero() && !at.Before(since) && (until.IsZero() || !at.After(until)) && !send(m) {
			return nil
		}
	}
	for {
		select {
		case m, ok := <-later:
			if !ok {
				panic(http.ErrAbortHandler) // the client must not conclude that nothing has happened
			}
			if !send(m) {
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// satisfies() reports whether an event satisfies the filters of a client.
func (m *message) satisfies(f filters) bool {
	name := m.Actor.Attributes["name"]
	isContainer := m.Type == ofContainer
	return f.match("type", m.Type) && f.match("event", m.Action) && f.match("scope", m.Scope) &&
		(len(f["container"]) == 0 || isContainer && (f.match("container", name) || f.begins("container", m.ID))) &&
		(len(f["image"]) == 0 || f.match("image", m.From) || !isContainer && f.match("image", m.ID, name)) &&
		f.labels(m.Actor.Attributes)
}
