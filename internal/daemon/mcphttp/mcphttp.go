// Package mcphttp serves the tools of internal/mcp at the daemon's path /mcp, over streamable HTTP
// without sessions.
//
// It authorizes nothing itself. The route in package v1 identifies the client of a message. Each
// call of a tool is then a request to the whole API, in this process, with the credentials of the
// message. So tools are subject to the same tokens, scopes, label prefixes, gates, audit lines and
// limits as programs.
package mcphttp

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/mcp"
)

// defaultKeepalive is shorter than the idle timeout of proxies, often a minute.
const defaultKeepalive = 15 * time.Second

// New returns a function for v1.Config.MCP, which returns the handler of messages; its tools call api.
// keepalive is the interval of comments in a silent stream; 0: 15 seconds. Panics of api are logged to
// log.
func New(version string, keepalive time.Duration, log *slog.Logger) func(api http.Handler) http.Handler {
	return func(api http.Handler) http.Handler {
		f := &messages{api: api, log: log, catalog: mcp.New(version), shared: map[mcp.Scope]func() *sdk.Server{}}
		for _, scope := range []mcp.Scope{mcp.Read, mcp.Run, mcp.Admin} {
			f.shared[scope] = sync.OnceValue(func() *sdk.Server { return f.catalog.Shared(scope) })
		}
		f.protocol = protocol(serverOf)
		return kept(f, keepalive)
	}
}

// Served returns a handler for the servers that serverOf returns; otherwise it is like New's. The
// conformance suite uses Served with a server that has the tools which the suite expects.
func Served(serverOf func(*http.Request) *sdk.Server, keepalive time.Duration) http.Handler {
	return kept(protocol(serverOf), keepalive)
}

func protocol(serverOf func(*http.Request) *sdk.Server) http.Handler {
	return sdk.NewStreamableHTTPHandler(serverOf, &sdk.StreamableHTTPOptions{
		Stateless: true, PropagateRequestCancellation: true,
		DisableLocalhostProtection: true, // the daemon checks hosts itself
		MaxRequestBodyBytes:        -1,   // v1 has bounded the body
	})
}

// kept returns a handler that keeps silent streams alive.
func kept(h http.Handler, keepalive time.Duration) http.Handler {
	keepalive = cmp.Or(keepalive, defaultKeepalive)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		answer, ended := alive(w, keepalive, cancel)
		defer ended()
		h.ServeHTTP(answer, r.WithContext(ctx))
	})
}

// messages is the handler of messages.
type messages struct {
	api      http.Handler
	log      *slog.Logger
	catalog  *mcp.Catalog
	shared   map[mcp.Scope]func() *sdk.Server // created for the first message that needs it
	protocol http.Handler
}

type serverKey struct{}

func serverOf(r *http.Request) *sdk.Server {
	s, _ := r.Context().Value(serverKey{}).(*sdk.Server)
	return s
}

// Subscriptions are the only method that needs a server of its own. By the protocol, the header
// names the method of the message, and the SDK refuses a message with a different one.
const (
	methodHeader = "Mcp-Method"
	listenMethod = "subscriptions/listen"
)

// ServeHTTP answers one message with the tools of the client's scope. They call the API as the
// client.
func (f *messages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	cl, scope := client.Over(newTransport(f.api, r, f.log)), scopeOf(auth.From(r.Context()).Scope)
	ctx := mcp.With(r.Context(), cl)
	var s *sdk.Server
	if r.Header.Get(methodHeader) == listenMethod {
		s = f.catalog.Server(r.Context(), cl, scope)
	} else {
		s = f.shared[scope]()
	}
	f.protocol.ServeHTTP(w, r.WithContext(context.WithValue(ctx, serverKey{}, s)))
}

func scopeOf(s auth.Scope) mcp.Scope {
	switch {
	case s >= auth.Admin:
		return mcp.Admin
	case s >= auth.Run:
		return mcp.Run
	}
	return mcp.Read
}
