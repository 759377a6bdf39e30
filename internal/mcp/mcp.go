// Package mcp offers sandboxes to language models through the Model Context Protocol: tools,
// resources, and instructions that say when to branch. The official SDK implements versions
// 2024-11-05 to 2026-07-28 of the protocol.
//
// The package uses only the REST API, through package client. So a model has the rights of the
// client's token, and sees only the sandboxes that the client may see. The package keeps no state
// between calls. Every tool has the id of its sandbox as an argument, and the process id identifies
// a long-running command. The package does not use the protocol's roots, sampling or logging.
//
// Each tool has constants that bound the data that a guest can make large. If data was omitted, the
// answer says so.
package mcp

import (
	"context"
	"fmt"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/client"
)

// Scope determines which tools a client sees. Each scope includes the tools of lower scopes.
type Scope int

// The scopes of the daemon's tokens.
const (
	Read Scope = iota + 1
	Run
	Admin
)

// ParseScope parses the scope in the answer to GET /version. An older daemon names no scope. An
// empty name means Admin, so that all tools are offered. The API also checks the scope of each
// call.
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

// toolsTTL is how long a client may cache the list of tools, in milliseconds. The list depends only
// on the program and on the client's scope.
const toolsTTL = 10 * 60 * 1000

// Catalog is the set of tools. It makes a server for each client or scope.
type Catalog struct {
	version string
	tools   []tool
	cache   *sdk.SchemaCache
}

// New returns the catalog. The parameter version is the version of the program.
func New(version string) *Catalog {
	c := &Catalog{version: version, cache: sdk.NewSchemaCache()}
	for _, group := range [][]tool{toolsOf05(), branchTools(), attemptTools(), codeTools(), commandTools(), fileTools(),
		networkTools(), effectTools(), volumeTools()} {
		c.tools = append(c.tools, group...)
	}
	return c
}

// Server returns a server with the tools of a scope. The tools send requests with cl. When ctx
// ends, subscriptions and calls end too.
func (c *Catalog) Server(ctx context.Context, cl *client.Client, scope Scope) *sdk.Server {
	f := newFollower(ctx, cl)
	s := c.server(scope, f.subscribe, f.unsubscribe)
	f.updated = func(uri string) {
		_ = s.ResourceUpdated(ctx, &sdk.ResourceUpdatedNotificationParams{URI: uri}) // never fails
	}
	s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(inner context.Context, method string, req sdk.Request) (sdk.Result, error) {
			return next(context.WithValue(inner, messageKey{}, &message{ctx, cl}), method, req)
		}
	})
	return s
}

// Shared returns a server for the messages of many clients with the same scope, over a transport
// without sessions. The context of a message has the client to use; see With. The server declares
// subscriptions, but refuses them. Only a server that Catalog.Server returns supports
// subscriptions.
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

// message holds data about one message of a client, for the tool or the resource that the message
// names.
type message struct {
	ctx context.Context // ends when the client has left
	cl  *client.Client
}

type messageKey struct{}

// With returns the context for a message to a Shared server. If the message calls a tool, the tool
// uses cl and is cancelled when ctx ends.
func With(ctx context.Context, cl *client.Client) context.Context {
	return context.WithValue(ctx, messageKey{}, &message{ctx, cl})
}

// clientOf returns the client for the current message.
func clientOf(ctx context.Context) *client.Client {
	return ctx.Value(messageKey{}).(*message).cl // a missing message is a defect of this program
}

// ended is a middleware. When a message's context ends, it cancels the calls of the message, in
// every version of the protocol.
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

// cacheable permits clients to cache lists of tools and resources. These lists are the same for all
// clients of a scope. cacheable does not permit clients to cache data of sandboxes.
func cacheable(_ context.Context, req sdk.Request, c *sdk.Cacheable) {
	c.CacheScope = "private"
	if _, ok := req.(*sdk.ReadResourceRequest); ok {
		c.TTLMs = 0
		return
	}
	c.TTLMs = toolsTTL
}

// Describe returns the tools of all scopes, with the scope that each requires. The tools of forkd
// 0.5 come first. (Clients see the tools sorted by name.)
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

// Description describes a tool for documents.
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
