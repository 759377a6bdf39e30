// Package face contains what the daemon's faces have in common: identification of clients and
// origins, limits on the resources that clients can hold, bodies, answers and errors, requests that
// are executed only once, and streams to guests.
//
// It knows no routes and no messages. Each face assigns its requests to classes.
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

// Error is an error with its HTTP status, for a request that is invalid or that arrives at a wrong
// time.
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

// Config is the configuration common to all faces of a daemon.
type Config struct {
	Host     *tenancy.Host
	Guard    *auth.Guard // nil: every client has all rights
	Hosts    []string    // names of this host, in addition to those of loopback, that clients without a token may use
	Audit    *audit.Log  // nil: none
	Answers  *once.Book  // to requests that must not be carried out twice
	Limits   Limits
	Counts   Streams                                            // counts streams to ports
	Requests func(route string, status int, took time.Duration) // counts all requests; nil: none are counted
	Stopping context.Context                                    // ends when streams to ports must end; nil: never
	Log      *slog.Logger
}

// Face is the state that all faces of a daemon share. A request occupies a place in one of the
// gates while it is served, whichever face serves it.
type Face struct {
	Config
	proxy *inbound.Proxy

	Guests    *Gate // calls to guests
	Control   *Gate // calls to running processes; not blocked by calls that wait in Guests
	Work      *Gate // operations on sandboxes and snapshots
	Messages  *Gate // of the Model Context Protocol
	Lists     *Gate // lists of all things of a kind; large, and in memory until received
	Reads     *Gate // reads of one thing
	Ends      *Gate // requests that kill sandboxes or delete things; no other request can block them
	Open      *Gate // requests that need no token, counted by the client's address
	Followers *Gate // event streams
	Logs      *Gate // answers with console output
	Streams   *Gate // streams to ports of guests
	Signed    *Gate // such streams of strangers with signed URLs
	Carried   *Gate // requests that enter Streams or Signed themselves; unbounded

	Memory    *Memory
	Strangers *Strangers

	failures *failures
}

// New returns a Face. Zero limits take their defaults.
func New(cfg Config) *Face {
	cfg.Limits = cfg.Limits.withDefaults()
	if cfg.Stopping == nil {
		cfg.Stopping = context.Background()
	}
	l := cfg.Limits
	message := max(1, l.Calls/8) // a subscription occupies a place of a message as long as it lasts
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
		failures:  newFailures(),
	}
}

// ClientOf returns the name under which a request is counted: that of its principal, or its address
// if it has none.
func ClientOf(r *http.Request) string {
	if who := auth.From(r.Context()).Who; who != "" {
		return who
	}
	return addressOf(r)
}

// View returns the part of the host that the principal of the request with context ctx may see.
// Without a principal, nothing is visible.
func (f *Face) View(ctx context.Context) *tenancy.View {
	who := auth.From(ctx)
	return f.Host.For(who.Owner())
}
