package face

import (
	"cmp"
	"net"
	"net/http"

	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/owner"
)

// Class says how many requests of a kind are served at once.
type Class struct {
	Total   int // 0: no bound
	Client  int // of one client; 0: three quarters, or as many as there are of clients that cannot be told apart
	Sandbox int // that concern one sandbox; 0: no bound of its own

	Refusal error // of a request for which there is no place; nil: ErrTooMany
}

// Gate has places for the requests of one class that are served at once. More are turned away instead
// of queued. No client has all places, so none keeps the others out.
type Gate struct {
	Class
	places *gate.Gate
}

// NewGate returns a Gate.
func NewGate(c Class) *Gate { return &Gate{c, gate.New(c.Total)} }

// What refuses a request for which its class has no place. A client without a token learns that it is
// its own doing: 503 would say that the daemon is not ready.
var (
	ErrTooMany  = NewError(http.StatusServiceUnavailable, "too many requests at once; try again")
	errTooEager = NewError(http.StatusTooManyRequests, "too many requests without a token at once; try again")
)

// Enter takes a place for a request of a client that concerns a sandbox, or none. The caller calls leave
// once.
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

// Serve answers a request with h, or with fail and its error, if there is a place for it. The request has
// its place until its client has taken a short answer: a client of HTTP/2 that takes none would hold
// the answer, and as many others as it likes.
func (g *Gate) Serve(w http.ResponseWriter, r *http.Request, h Handler,
	fail func(http.ResponseWriter, *http.Request, error)) {
	leave, err := g.Enter(ClientOf(r), r.PathValue("id"))
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

// addressOf returns the address of a client, without its port: an IP address, or "" of a unix socket.
func addressOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return "from " + host
}
