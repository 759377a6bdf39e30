package face

import (
	"cmp"
	"errors"
	"net/http"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/owner"
)

// Class limits the requests of one kind that are served at the same time.
type Class struct {
	Total   int // 0: no limit
	Client  int // places of one client; if 0, three quarters of Total, or no limit if clients are anonymous
	Sandbox int // places for one sandbox; 0: no limit

	Refusal error // error for a request beyond the limits; nil: ErrTooMany
}

// Gate limits the requests of one class that are served at the same time. Each of these requests
// takes a place. A request that finds no free place is refused, not queued. No client can take all
// places, so no client can lock other clients out.
//
// The operator (auth.Principal.Operator) has a few places of its own. So even if clients have taken
// all places, the operator can check that the daemon is healthy, or suspend the sandboxes before it
// stops the daemon.
type Gate struct {
	Class
	places  *gate.Gate
	reserve *gate.Gate
}

// NewGate returns a Gate. The operator's places are in addition to the places of the class.
func NewGate(c Class) *Gate { return &Gate{c, gate.New(c.Total), gate.New(max(1, c.Total/8))} }

// Errors for a request that finds no free place. Clients without a token get status 429, because
// their own requests took the places. Status 503 would tell a health check that the daemon is not
// ready.
var (
	ErrTooMany  = NewError(http.StatusServiceUnavailable, "too many requests at once; try again")
	errTooEager = NewError(http.StatusTooManyRequests, "too many requests without a token at once; try again")
)

// Enter takes a place for a request of a client. The parameter sandboxID is the sandbox that the
// request names, if any. The caller must call the returned function once.
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

// Serve takes a place, and calls h to answer a request. If there is no free place, or if h returns
// an error, Serve calls fail(…), which sends the answer. With HTTP/2, a request with a short answer
// keeps its place until the answer has been sent. Otherwise a client that reads nothing could make
// the daemon hold any number of answers.
func (g *Gate) Serve(w http.ResponseWriter, r *http.Request, h Handler,
	fail func(http.ResponseWriter, *http.Request, error)) {
	leave, err := g.Enter(ClientOf(r), r.PathValue("id"))
	if err != nil && auth.From(r.Context()).Operator() {
		if reserved, full := g.reserve.Enter(); full == nil {
			leave, err = reserved, nil
		}
	}
	if errors.Is(err, errTooEager) {
		LetGo(w)
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
		_ = http.NewResponseController(w).Flush() // fails only if the client has left
	}
}

// addressOf returns the address of a client, or the user of a unix socket, as in auth.PeerName.
func addressOf(r *http.Request) string {
	name := auth.PeerName(r.Context(), r.RemoteAddr)
	if name == "" {
		return ""
	}
	return "from " + name
}
