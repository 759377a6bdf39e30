package auth

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/forkd/forkd/internal/host/owner"
)

// Principal is the client of a request, with its rights.
type Principal struct {
	Who          string // "token:NAME", "uid:1000", "cert:NAME", or "local" if no credentials are required
	Scope        Scope
	MaxSandboxes int // maximum number of sandboxes at the same time; 0: no limit
	Prefix       owner.Prefix
}

// Owner returns the owner of the sandboxes and snapshots that p makes.
func (p Principal) Owner() owner.Owner {
	return owner.Owner{Name: p.Who, Most: p.MaxSandboxes, Prefix: p.Prefix, Admin: p.Scope >= Admin}
}

// ScopeError refuses a request whose principal lacks the required scope.
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

// Need returns nil if the scope of p includes the wanted scope.
func (p Principal) Need(want Scope) error {
	if !p.Scope.includes(want) {
		return &ScopeError{p.Who, p.Scope, want}
	}
	return nil
}

type identifiedKey struct{}

// OnIdentified returns a context for a request. When the client of the request has been identified,
// Identified or Admitted calls known(who, stranger), perhaps more than once. Its first argument,
// who, is the name under which the client is counted. If stranger is true, the client has only a
// permission for one sandbox, and who is the name of that sandbox's owner. If ctx already has such
// a function, that function is called too.
func OnIdentified(ctx context.Context, known func(who string, stranger bool)) context.Context {
	if outer, ok := ctx.Value(identifiedKey{}).(func(string, bool)); ok {
		inner := known
		known = func(who string, stranger bool) {
			outer(who, stranger)
			inner(who, stranger)
		}
	}
	return context.WithValue(ctx, identifiedKey{}, known)
}

// Identified calls the function that was given to OnIdentified. A handler calls Identified when the
// client of a request has been identified. The name of the client is the principal's name or, for a
// client with a token of one sandbox, the name of the sandbox's owner.
func Identified(ctx context.Context, who string) { identified(ctx, who, false) }

// Admitted is like Identified, but for a stranger that has taken one of the places for strangers.
// The second argument is the name of the owner of the sandbox that the stranger uses.
func Admitted(ctx context.Context, owner string) { identified(ctx, owner, true) }

func identified(ctx context.Context, who string, stranger bool) {
	if known, ok := ctx.Value(identifiedKey{}).(func(string, bool)); ok {
		known(who, stranger)
	}
}

// Guard identifies the client of a request. A nil *Guard gives every client all rights.
type Guard struct {
	Tokens *Tokens    // nil: no token is required
	Certs  bool       // every client over TCP has a certificate
	Peers  []PeerRule // rules for users of the unix socket
}

// Demands reports whether clients over TCP need credentials.
func (g *Guard) Demands() bool { return g != nil && (g.Tokens != nil || g.Certs) }

// Identify returns the principal of a request. If the request has a token, the token names the
// principal. If it has no token, the principal is the user at the other end of the unix socket or,
// if no token is required, the name in the client's certificate. For a user of the socket without a
// rule, Identify returns both the principal and an error. The caller should close the connection of
// a request that Identify refuses.
func (g *Guard) Identify(r *http.Request) (Principal, error) { return g.IdentifyBy(r, presented(r)) }

// IdentifyBy is like Identify, but for a token that was sent in another way, such as the API keys
// of E2B's clients. An invalid token is an error, even if the connection alone would name a
// principal.
func (g *Guard) IdentifyBy(r *http.Request, token string) (Principal, error) {
	who, err := g.identify(r, token)
	if err == nil {
		Identified(r.Context(), who.Who)
	}
	return who, err
}

func (g *Guard) identify(r *http.Request, token string) (Principal, error) {
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
	// Cannot happen: without a certificate, the TLS handshake would have failed.
	case r.TLS == nil || len(r.TLS.VerifiedChains) == 0:
		return Principal{}, errCertificate
	}
	return Principal{Who: "cert:" + r.TLS.VerifiedChains[0][0].Subject.CommonName, Scope: Admin}, nil
}

// apiKeyPrefix is the prefix of E2B's API keys. E2B's SDKs of 2025 accept no other prefix.
const apiKeyPrefix = "e2b_"

// IdentifyByAPIKey is like IdentifyBy, but the token may begin with "e2b_", as E2B's API keys do.
func (g *Guard) IdentifyByAPIKey(r *http.Request, key string) (Principal, error) {
	who, err := g.IdentifyBy(r, key)
	if token, ok := strings.CutPrefix(key, apiKeyPrefix); ok && err != nil {
		return g.IdentifyBy(r, token)
	}
	return who, err
}

// IsToken reports whether text is a token of the daemon, with or without the prefix of an API key.
// Such text must not be passed on to a guest.
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

// Holds reports whether a principal, given as Principal.Who, still has a scope that includes the
// wanted scope. A principal loses its scope only when its token is removed from the token file.
func (g *Guard) Holds(who string, want Scope) bool {
	name, ok := strings.CutPrefix(who, tokenWho)
	return g == nil || g.Tokens == nil || !ok || g.Tokens.has(name, want)
}

// Current returns the present rights of a principal, given as Principal.Who. It returns false if the
// principal's token is gone, or if only a connection can identify the principal.
func (g *Guard) Current(who string) (p Principal, ok bool) {
	if g == nil {
		return Principal{Who: owner.Anyone, Scope: Admin}, who == owner.Anyone
	}
	name, isToken := strings.CutPrefix(who, tokenWho)
	if g.Tokens == nil || !isToken {
		return Principal{}, false
	}
	for _, t := range g.Tokens.current() {
		if t.Name == name {
			return t.principal(), true
		}
	}
	return Principal{}, false
}

type principalKey struct{}

// With returns a context for requests of p. Sandboxes that are forked with this context belong to
// p.
func With(ctx context.Context, p Principal) context.Context {
	return context.WithValue(owner.In(ctx, p.Owner()), principalKey{}, p)
}

// From returns the principal of a request. For an unidentified request it returns the zero
// Principal, which has no rights.
func From(ctx context.Context) Principal {
	p, _ := ctx.Value(principalKey{}).(Principal)
	return p
}
