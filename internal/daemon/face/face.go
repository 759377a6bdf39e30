// Package face holds what the daemon's faces have in common: who may make a request and from where, what
// clients can hold of the daemon at once, bodies, answers and errors, requests that are carried out once,
// and the way of streams to guests.
//
// It knows no route and no message of a face. Which class a request counts in is for the face to say.
package face

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/inbound"
	"github.com/forkd/forkd/internal/daemon/once"
	"github.com/forkd/forkd/internal/host/tenancy"
)

// Handler answers a request or returns the error to answer it with.
type Handler func(http.ResponseWriter, *http.Request) error

// Error is an error with its HTTP status: of a request that is wrong by itself, or that comes at a
// wrong time.
type Error struct {
	Status  int
	Message string
}

func (e *Error) Error() string { return e.Message }

// NewError returns an *Error.
func NewError(status int, message string) *Error { return &Error{Status: status, Message: message} }

// BadRequest returns an *Error with status 400.
func BadRequest(format string, args ...any) error {
	return NewError(http.StatusBadRequest, fmt.Sprintf(format, args...))
}

// Config is what the faces of a daemon have in common.
type Config struct {
	Host     *tenancy.Host
	Guard    *auth.Guard // nil: every client may do everything
	Hosts    []string    // names of this host that clients without a token may use, besides those of loopback
	Audit    *audit.Log  // nil: none
	Answers  *once.Book  // to requests that are not to be carried out twice
	Limits   Limits
	Counts   Streams                                            // counts streams to ports
	Requests func(route string, status int, took time.Duration) // counts all requests; nil: none are counted
	Stopping context.Context                                    // ends when streams to ports are to end; nil: never
	Log      *slog.Logger
}

// Face is the state that all faces of a daemon share. A request counts in one of its classes as long
// as it is served, whichever face serves it.
type Face struct {
	Config
	proxy *inbound.Proxy

	Guests    *Gate // calls to guests
	Control   *Gate // to processes in guests: those that wait in Guests must not keep out what feeds or ends them
	Work      *Gate // operations on sandboxes and snapshots
	Messages  *Gate // of the Model Context Protocol
	Lists     *Gate // of all that there is of a kind: they can be large, and wait in memory for their clients
	Reads     *Gate // of one thing
	Ends      *Gate // what ends sandboxes and removes things: no other request keeps it out
	Open      *Gate // requests that need no token, by the address of the client
	Followers *Gate // streams of events
	Logs      *Gate // answers from consoles
	Streams   *Gate // to ports of guests,
	Signed    *Gate // and to those by strangers
	Carried   *Gate // requests that take their place in Streams or Signed when they begin: this is without bounds

	Memory    *Memory
	Strangers *Strangers
}

// New returns a Face. Zero fields of the limits have their defaults.
func New(cfg Config) *Face {
	cfg.Limits = cfg.Limits.withDefaults()
	if cfg.Stopping == nil {
		cfg.Stopping = context.Background()
	}
	l := cfg.Limits
	message := max(1, l.Calls/8) // a subscription is a message as long as it lasts
	return &Face{
		Config:    cfg,
		proxy:     inbound.New(inbound.Config{IsToken: cfg.Guard.IsToken, Idle: l.Idle, Stall: l.Stall}),
		Guests:    NewGate(Class{Total: l.Calls, Sandbox: l.PerSandbox}),
		Control:   NewGate(Class{Total: l.Calls, Sandbox: l.PerSandbox}),
		Work:      NewGate(Class{Total: l.Calls, Sandbox: l.PerSandbox}),
		Messages:  NewGate(Class{Total: message}),
		Lists:     NewGate(Class{Total: l.Lists, Client: max(1, l.Lists/2)}),
		Reads:     NewGate(Class{Total: l.Reads}),
		Ends:      NewGate(Class{Total: l.Reads}),
		Open:      NewGate(Class{Total: l.Reads, Refusal: errTooEager}),
		Followers: NewGate(Class{Total: l.Followers}),
		Logs:      NewGate(Class{Total: l.Followers, Sandbox: max(1, l.Followers/2)}),
		Streams:   NewGate(Class{Total: l.Streams, Sandbox: l.StreamsPerSandbox}),
		Signed:    NewGate(Class{Total: l.Signed, Sandbox: l.SignedPerSandbox}),
		Carried:   NewGate(Class{}),
		Memory:    newMemory(l.Memory),
		Strangers: newStrangers(l.SignedPerSecond, l.SignedBurst),
	}
}

// ClientOf returns the name under which a request counts: that of its principal or, where there is none,
// its address.
func ClientOf(r *http.Request) string {
	if who := auth.From(r.Context()).Who; who != "" {
		return who
	}
	return addressOf(r)
}

// View returns what the principal of a request may know of, by the request's context. That is nothing, if
// there is no principal.
func (f *Face) View(ctx context.Context) *tenancy.View {
	who := auth.From(ctx)
	return f.Host.For(who.Owner())
}
