// Package mcp offers sandboxes to language models by the Model Context Protocol: tools, resources
// and the instructions that say when to branch. The official SDK speaks the protocol, in the
// versions 2024-11-05 to 2026-07-28.
//
// It calls the REST API through package client and nothing else, so it may do what its client may
// do, and it finds out nothing of sandboxes that the client may not know of. It keeps no state
// between calls: every tool takes the id of its sandbox, and what runs for long is found again by
// the number of its process. It uses neither roots, sampling nor logging of the protocol.
//
// What a guest can make large is bounded by the constants of each tool, and the answer says what
// was omitted.
package mcp

import (
	"context"
	"fmt"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/client"
)

// Scope says which tools a client sees. Each scope has the tools of those below it.
type Scope int

// The scopes of the daemon's tokens.
const (
	Read Scope = iota + 1
	Run
	Admin
)

// ParseScope reads the name of a scope, as GET /version has it. Daemons without such a field have
// every tool refused by the API alone, so an empty name is Admin.
func ParseScope(name string) (Scope, error) {
	switch name {
	case "read":
		return Read, nil
	case "run":
		return Run, nil
	case "admin", "":
		return Admin, nil
	}
	return 0, fmt.Errorf("scope %q: want read, run or admin", name)
}

// MaxMessage bounds one message of a client, in bytes.
const MaxMessage = 4 << 20

// toolsTTL is how long a client may keep the list of tools, in milliseconds: the list depends on
// the program and on the client's scope.
const toolsTTL = 10 * 60 * 1000

// Catalog is the set of tools, from which a server for each client is made.
type Catalog struct {
	version string
	tools   []tool
	cache   *sdk.SchemaCache
}

// New returns the catalog of a program with the given version.
func New(version string) *Catalog {
	c := &Catalog{version: version, cache: sdk.NewSchemaCache()}
	for _, group := range [][]tool{toolsOf05(), branchTools(), attemptTools(), codeTools(), commandTools(), fileTools(),
		networkTools()} {
		c.tools = append(c.tools, group...)
	}
	return c
}

// Server returns a server whose tools call cl, with the tools of a scope. Subscriptions of its
// clients are followed until ctx ends, and its calls end with ctx.
func (c *Catalog) Server(ctx context.Context, cl *client.Client, scope Scope) *sdk.Server {
	f := newFollower(ctx, cl)
	s := c.server(scope, f.subscribe, f.unsubscribe)
	f.updated = func(uri string) {
		_ = s.ResourceUpdated(ctx, &sdk.ResourceUpdatedNotificationParams{URI: uri}) // it returns no error
	}
	s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(inner context.Context, method string, req sdk.Request) (sdk.Result, error) {
			return next(context.WithValue(inner, messageKey{}, &message{ctx, cl}), method, req)
		}
	})
	return s
}

// Shared returns a server for the messages of many clients of a scope, over a transport without
// sessions. The context of each message says who sent it: see With. Its clients cannot subscribe,
// but are told that they can: a message that does so needs a Server.
func (c *Catalog) Shared(scope Scope) *sdk.Server {
	s := c.server(scope, func(context.Context, *sdk.SubscribeRequest) error { return errNoMethod },
		func(context.Context, *sdk.UnsubscribeRequest) error { return errNoMethod })
	s.AddReceivingMiddleware(withoutSession)
	return s
}

func (c *Catalog) server(scope Scope, subscribe func(context.Context, *sdk.SubscribeRequest) error,
	unsubscribe func(context.Context, *sdk.UnsubscribeRequest) error) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{
		Name: "forkd", Title: "forkd sandboxes", Version: c.version,
		Description: "MicroVM sandboxes that can be forked, branched and rolled back while they run",
		WebsiteURL:  "https://github.com/forkd/forkd",
	}, &sdk.ServerOptions{
		Instructions: instructions,
		Capabilities: &sdk.ServerCapabilities{
			Tools:     &sdk.ToolCapabilities{},
			Resources: &sdk.ResourceCapabilities{Subscribe: true},
		},
		SchemaCache:        c.cache,
		SetCacheable:       cacheable,
		SubscribeHandler:   subscribe,
		UnsubscribeHandler: unsubscribe,
	})
	s.AddReceivingMiddleware(refused, explained, ended)
	for i := range c.tools {
		if t := &c.tools[i]; t.scope <= scope {
			t.add(s)
		}
	}
	addResources(s, scope)
	return s
}

// message is what calls of tools and reads of resources know of their client.
type message struct {
	ctx context.Context // ends when the client has left
	cl  *client.Client
}

type messageKey struct{}

// With returns the context of a message to a Shared server, whose tools call cl. They end with ctx.
func With(ctx context.Context, cl *client.Client) context.Context {
	return context.WithValue(ctx, messageKey{}, &message{ctx, cl})
}

// clientOf returns the client of the message that is answered.
func clientOf(ctx context.Context) *client.Client {
	return ctx.Value(messageKey{}).(*message).cl // a server without one is an error of this program
}

// ended ends calls with their message, in all versions of the protocol.
func ended(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if m, ok := ctx.Value(messageKey{}).(*message); ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(m.ctx, cancel)()
		}
		return next(ctx, method, req)
	}
}

// cacheable lets clients keep lists, which are the same for all clients of a scope, and nothing of
// what sandboxes are.
func cacheable(_ context.Context, req sdk.Request, c *sdk.Cacheable) {
	c.CacheScope = "private"
	if _, ok := req.(*sdk.ReadResourceRequest); ok {
		c.TTLMs = 0
		return
	}
	c.TTLMs = toolsTTL
}

// Describe returns the tools of all scopes, each with the scope that it wants: those of forkd 0.5
// first. (Clients see tools in the order of their names.)
func (c *Catalog) Describe() (list []Description) {
	for i := range c.tools {
		t := &c.tools[i]
		list = append(
			list,
			Description{Name: t.spec.Name, Text: t.spec.Description, Scope: t.scope, Input: t.input, Hints: t.spec.Annotations},
		)
	}
	return list
}

// Description is a tool in documents.
type Description struct {
	Name, Text string
	Scope      Scope
	Input      *jsonschema.Schema
	Hints      *sdk.ToolAnnotations
}

// String returns the name of a scope.
func (s Scope) String() string {
	switch s {
	case Read:
		return "read"
	case Run:
		return "run"
	}
	return "admin"
}
