// Package face contains the common parts of the daemon's APIs, the packages v1, e2b, docker and
// ocihttp. Each of these APIs is called a face. The common parts identify clients and origins,
// limit the resources that clients can hold, read bodies, write answers and errors, execute some
// requests only once, and carry streams to guests. A stranger is a client that has only a
// permission for one sandbox, such as a signed URL.
//
// The package contains no routes and no messages. Each face decides which gate a request must
// enter.
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

// Handler answers a request, or returns an error for which its caller sends an answer.
type Handler func(http.ResponseWriter, *http.Request) error

// Error is an error with its HTTP status. It is for an invalid request, or for a request that the
// present state does not allow.
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

// Config is the configuration that all faces of a daemon share.
type Config struct {
	Host    *tenancy.Host
	Guard   *auth.Guard // nil: every client has all rights
	Hosts   []string    // further names of this host that clients without a token may use
	Audit   *audit.Log  // nil: none
	Answers *once.Book  // answers to requests that must be carried out only once
	Limits  Limits
	Counts  Streams // counts streams to ports of guests
	// Called after each request; nil: requests are not counted.
	Requests func(route string, status int, took time.Duration)
	Stopping context.Context // ends when streams to ports must end; nil: never
	Log      *slog.Logger
}

// Face is the state that all faces of a daemon share. A request takes a place in one of the gates
// while it is served. Requests of all faces count together.
type Face struct {
	Config
	proxy *inbound.Proxy

	Guests   *Gate // requests to guests
	Control  *Gate // requests to running processes; they do not wait for places in Guests
	Work     *Gate // operations on sandboxes and snapshots
	Messages *Gate // messages of the Model Context Protocol
	// Requests for lists of sandboxes, snapshots and so on. An answer is large, and is in memory
	// until the client has received it.
	Lists *Gate
	Reads *Gate // requests that read the description of a single object, such as a sandbox
	Ends  *Gate // requests that kill sandboxes or delete snapshots; requests of other kinds take no places here
	// Requests that need no token, counted by the client's IP address. The share of an address is
	// small, because probes of the daemon's health use this gate.
	Open      *Gate
	Followers *Gate // event streams
	Logs      *Gate // answers with console output
	Streams   *Gate // streams to ports of guests
	Signed    *Gate // streams to ports of guests by signed URLs, or through ports that the package docker publishes
	Carried   *Gate // requests that enter another gate later; unbounded
	Pulls     *Gate // requests of other daemons that pull snapshots; some of the answers take minutes

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
	message := max(1, l.Calls/8) // a subscription takes a place in Messages as long as it lasts
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
		Open:      NewGate(Class{Total: l.Reads, Client: max(1, l.Reads/16), Refusal: errTooEager}),
		Followers: NewGate(Class{Total: l.Followers}),
		Logs:      NewGate(Class{Total: l.Followers, Sandbox: max(1, l.Followers/2)}),
		Streams:   NewGate(Class{Total: l.Streams, Sandbox: l.StreamsPerSandbox}),
		Signed:    NewGate(Class{Total: l.Signed, Sandbox: l.SignedPerSandbox}),
		Carried:   NewGate(Class{}),
		Pulls:     NewGate(Class{Total: max(1, l.Calls/16)}),
		Memory:    newMemory(l.Memory),
		Strangers: newStrangers(l.SignedPerSecond, l.SignedBurst),
		failures:  newFailures(),
	}
}

// ClientOf returns the name under which a request is counted: the name of its principal or, without
// a principal, the client's IP address.
func ClientOf(r *http.Request) string {
	if who := auth.From(r.Context()).Who; who != "" {
		return who
	}
	return addressOf(r)
}

// View returns the sandboxes and snapshots that the principal of a request may see. The parameter
// ctx is the context of the request. If the request has no principal, nothing is visible.
func (f *Face) View(ctx context.Context) *tenancy.View {
	who := auth.From(ctx)
	return f.Host.For(who.Owner())
}
