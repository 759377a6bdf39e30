package auth

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/forkd/forkd/internal/host/owner"
)

// Principal is who makes a request.
type Principal struct {
	Who          string // "token:NAME", "uid:1000", "cert:NAME", or "local" where nothing is demanded
	Scope        Scope
	MaxSandboxes int // that it may have at once; 0: no limit
	Prefix       owner.Prefix
}

// Owner returns in whose name what p asks for is done.
func (p Principal) Owner() owner.Owner {
	return owner.Owner{Name: p.Who, Most: p.MaxSandboxes, Prefix: p.Prefix, Admin: p.Scope >= Admin}
}

// ScopeError refuses a request whose maker is known and may not make it.
type ScopeError struct {
	Who        string
	Have, Want Scope
}

func (e *ScopeError) Error() string {
	if e.Have == 0 {
		return fmt.Sprintf("%s may not use this socket: have the daemon started with --allow-peer, or use a token", e.Who)
	}
	return fmt.Sprintf("%s has the scope %s, and this wants %s: use another token, or have one made with 'forkd token new NAME --scope %s'",
		e.Who, e.Have, e.Want, e.Want)
}

// Need returns nil if p may do what wants a scope.
func (p Principal) Need(want Scope) error {
	if p.Scope < want {
		return &ScopeError{p.Who, p.Scope, want}
	}
	return nil
}

// Guard finds out who makes a request. A nil *Guard lets everybody do everything.
type Guard struct {
	Tokens *Tokens    // nil: none is demanded
	Certs  bool       // over TCP there are only clients with certificates
	Peers  []PeerRule // of the unix socket
}

// Demands reports whether who comes over TCP must prove something.
func (g *Guard) Demands() bool { return g != nil && (g.Tokens != nil || g.Certs) }

// Identify returns who makes a request, by the token that it has in TokenHeader or in
// Authorization, or by its connection: the user at the other end of the unix socket, or, where no
// token is demanded, the name in the client's certificate. A user for whom there is no rule is
// named beside the error: like all who prove nothing, he is not to have a connection any longer.
func (g *Guard) Identify(r *http.Request) (Principal, error) { return g.IdentifyBy(r, presented(r)) }

// IdentifyBy is Identify for a token that came in another way, such as the API keys of E2B's
// clients. A token that is there must be right, whatever the connection proves.
func (g *Guard) IdentifyBy(r *http.Request, token string) (Principal, error) {
	if g == nil {
		return Principal{Who: owner.Anyone, Scope: Admin}, nil
	}
	if g.Tokens != nil && token != "" {
		p, ok := g.Tokens.Resolve(token)
		if !ok {
			return Principal{}, errInvalid
		}
		return p, nil
	}
	if peer, ok := PeerFrom(r.Context()); ok {
		who := g.byPeer(peer)
		return who, who.Need(Read)
	}
	switch {
	case g.Tokens != nil:
		return Principal{}, errMissing
	case !g.Certs:
		return Principal{Who: owner.Anyone, Scope: Admin}, nil
	case r.TLS == nil || len(r.TLS.VerifiedChains) == 0: // the handshake would have failed
		return Principal{}, errCertificate
	}
	return Principal{Who: "cert:" + r.TLS.VerifiedChains[0][0].Subject.CommonName, Scope: Admin}, nil
}

// apiKeyPrefix begins the API keys of E2B. Its SDKs of 2025 take no others.
const apiKeyPrefix = "e2b_"

// IdentifyByAPIKey is IdentifyBy for a token as an API key of E2B: as it is, or behind "e2b_".
func (g *Guard) IdentifyByAPIKey(r *http.Request, key string) (Principal, error) {
	who, err := g.IdentifyBy(r, key)
	if token, ok := strings.CutPrefix(key, apiKeyPrefix); ok && err != nil {
		return g.IdentifyBy(r, token)
	}
	return who, err
}

// IsToken reports whether a text is a token of the daemon, also as an API key, which nobody else
// may see.
func (g *Guard) IsToken(text string) bool {
	if g == nil || g.Tokens == nil {
		return false
	}
	_, ok := g.Tokens.Resolve(text)
	if !ok {
		_, ok = g.Tokens.Resolve(strings.TrimPrefix(text, apiKeyPrefix))
	}
	return ok
}

// Holds reports whether somebody, as Principal.Who has it, may still do what wants a scope. Of
// those who had it once, only tokens can have lost it: they are taken away while the daemon runs.
func (g *Guard) Holds(who string, want Scope) bool {
	name, ok := strings.CutPrefix(who, tokenWho)
	return g == nil || g.Tokens == nil || !ok || g.Tokens.has(name, want)
}

type principalKey struct{}

// With returns a context of requests that p makes. Sandboxes that are forked in it are p's.
func With(ctx context.Context, p Principal) context.Context {
	return context.WithValue(owner.In(ctx, p.Owner()), principalKey{}, p)
}

// From returns who makes a request; nobody, who may do nothing, if that was not found out.
func From(ctx context.Context) Principal {
	p, _ := ctx.Value(principalKey{}).(Principal)
	return p
}
