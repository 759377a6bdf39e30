package face

import (
	"cmp"
	"net/http"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/owner"
)

// Class says how many requests of a kind are served at once.
type Class struct {
	Total   int // 0: no bound
	Client  int // for one client; 0: three quarters, or all if clients cannot be told apart
	Sandbox int // for one sandbox; 0: no bound of its own

	Refusal error // error for a request that finds no place; nil: ErrTooMany
}

// Gate holds places for the requests of one class that are served at once. Requests beyond them are
// refused, not queued. No client can take all places, so no client can lock the others out.
//
// A reserve is left for the operator (auth.Principal.Operator) when clients have taken all places:
// probing the daemon, or suspending its sandboxes before it stops, must not depend on clients.
type Gate struct {
	Class
	places  *gate.Gate
	reserve *gate.Gate
}

// NewGate returns a Gate. Its reserve is in addition to the places of the class.
func NewGate(c Class) *Gate { return &Gate{c, gate.New(c.Total), gate.New(max(1, c.Total/8))} }

// Errors for a request that finds no place in its class. A client without a token gets 429, because
// it caused that itself; 503 would say that the daemon is not ready.
var (
	ErrTooMany  = NewError(http.StatusServiceUnavailable, "too many requests at once; try again")
	errTooEager = NewError(http.StatusTooManyRequests, "too many requests without a token at once; try again")
)

// Enter takes a place for a request of a client, about the given sandbox if any. The caller calls
// leave once.
func (g *Gate) Enter(client, sandboxID string) (leave func(), err error) {
	if g.Total == 0 {
		return func() {}, nil
	}
	shares := []gate.Share{{Key: client, Most: g.Client}}
	if g.Client == 0 {
		shares[0] = owner.FairShare(client, g.Total)
	}
	if sandboxID != "" && g.Sandbox != 0 {
		shares = append(shares, gate.Share{Key: "sandbox " + sandboxID, Most: g.Sandbox})
	}
	if leave, err = g.places.Enter(shares...); err != nil {
		return nil, cmp.Or(g.Refusal, error(ErrTooMany))
	}
	return leave, nil
}

// Serve answers a request with h if there is a place for it. If there is none, or if h returns an
// error, it answers with fail. A short answer keeps its place until the client has received it.
// Otherwise an HTTP/2 client that reads nothing could make the daemon hold any number of answers.
func (g *Gate) Serve(w http.ResponseWriter, r *http.Request, h Handler,
	fail func(http.ResponseWriter, *http.Request, error)) {
	leave, err := g.Enter(ClientOf(r), r.PathValue("id"))
	if err != nil && auth.From(r.Context()).Operator() {
		if reserved, full := g.reserve.Enter(); full == nil {
			leave, err = reserved, nil
		}
	}
	if err != nil {
		fail(w, r, err)
		return
	}
	defer leave()
	if err := h(w, r); err != nil {
		fail(w, r, err)
	}
	if r.ProtoMajor == 2 && w.Header().Get("Content-Length") != "" {
		_ = http.NewResponseController(w).Flush() // the client has gone if this fails
	}
}

// addressOf returns the address of a client as in auth.PeerName, or "" for a unix socket.
func addressOf(r *http.Request) string {
	if _, ok := auth.PeerFrom(r.Context()); ok {
		return ""
	}
	name := auth.PeerName(r.Context(), r.RemoteAddr)
	if name == "" {
		return ""
	}
	return "from " + name
}
