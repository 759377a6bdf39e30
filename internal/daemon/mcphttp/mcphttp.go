// Package mcphttp serves the tools of internal/mcp at the daemon's path /mcp, over streamable HTTP
// without sessions.
//
// It authorizes no request itself. The route in package v1 identifies the client of a message. Each
// call of a tool is then a request to the API in this process, with the credentials of the message.
// So a tool has the same rights and limits as a program with these credentials, and the same audit
// lines.
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

// defaultKeepalive is shorter than the idle timeout of proxies, which is often a minute.
const defaultKeepalive = 15 * time.Second

// New returns a function for v1.Config.MCP. That function returns the handler of messages. The
// tools of this handler send their requests to api, the handler of the API. The parameter keepalive
// is the interval of comments in an idle stream; 0 means 15 seconds. A panic of api is logged.
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

// Served returns the handler of messages to the servers that serverOf returns. The conformance
// suite of the protocol calls Served with a server that has the tools of the suite.
func Served(serverOf func(*http.Request) *sdk.Server, keepalive time.Duration) http.Handler {
	return kept(protocol(serverOf), keepalive)
}

func protocol(serverOf func(*http.Request) *sdk.Server) http.Handler {
	return sdk.NewStreamableHTTPHandler(serverOf, &sdk.StreamableHTTPOptions{
		Stateless: true, PropagateRequestCancellation: true,
		DisableLocalhostProtection: true, // the route in package v1 checks the host
		MaxRequestBodyBytes:        -1,   // the route in package v1 bounds the body
	})
}

// kept() returns a handler that writes comments into idle streams of h.
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
	api     http.Handler
	log     *slog.Logger
	catalog *mcp.Catalog
	// One server for each scope, created for the first message with that scope.
	shared   map[mcp.Scope]func() *sdk.Server
	protocol http.Handler
}

type serverKey struct{}

func serverOf(r *http.Request) *sdk.Server {
	s, _ := r.Context().Value(serverKey{}).(*sdk.Server)
	return s
}

// methodHeader is the header that names the method of a message, as the protocol requires. If this
// header and the message name different methods, the SDK refuses the message. Only the method for
// subscriptions needs a server of its own.
const (
	methodHeader = "Mcp-Method"
	listenMethod = "subscriptions/listen"
)

// ServeHTTP answers one message with the tools of the client's scope. The tools call the API with
// the client's credentials.
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
