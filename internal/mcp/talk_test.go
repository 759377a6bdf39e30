package mcp_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/guest/agent"
	"github.com/forkd/forkd/internal/mcp"
)

func TestMain(m *testing.M) { apirig.Main(m, agent.Main) }

// start serves the API with sandboxes that are processes of this host, and with a snapshot "a.b".
func start(t *testing.T, tokens ...auth.Token) *apirig.Rig {
	t.Helper()
	rig := apirig.Start(t, apirig.Options{Tokens: tokens, Agent: apirig.SelfAgent})
	if _, err := rig.Bake(t.Context(), rig.Parent); err != nil {
		t.Fatal(err)
	}
	return rig
}

// talk is a client of the protocol. It collects the notifications that it receives.
type talk struct {
	*sdk.ClientSession
	t        *testing.T
	progress chan *sdk.ProgressNotificationParams
	updated  chan string
}

// connect connects a client to a server in memory. The server's tools use cl.
func connect(t *testing.T, cl *client.Client, scope mcp.Scope) *talk {
	t.Helper()
	return connectWith(t, cl, scope, nil)
}

func connectWith(t *testing.T, cl *client.Client, scope mcp.Scope, o *sdk.ClientSessionOptions) *talk {
	t.Helper()
	here, there := sdk.NewInMemoryTransports()
	if _, err := mcp.New("test").Server(t.Context(), cl, scope).Connect(t.Context(), there, nil); err != nil {
		t.Fatal(err)
	}
	return join(t, here, o)
}

func join(t *testing.T, over sdk.Transport, o *sdk.ClientSessionOptions) *talk {
	t.Helper()
	c := &talk{t: t, progress: make(chan *sdk.ProgressNotificationParams, 100), updated: make(chan string, 100)}
	cl := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{},
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
			c.progress <- r.Params
		},
		ResourceUpdatedHandler: func(_ context.Context,
			r *sdk.ResourceUpdatedNotificationRequest) {
			c.updated <- r.Params.URI
		},
	})
	session, err := cl.Connect(t.Context(), over, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	c.ClientSession = session
	return c
}

type args = map[string]any

// call calls a tool, which must succeed, and decodes the structured output into out.
func (c *talk) call(name string, in args, out any) *sdk.CallToolResult {
	c.t.Helper()
	r := c.answer(name, in)
	if r.IsError {
		c.t.Fatalf("%s(%v): %s", name, in, text(r))
	}
	p, err := json.Marshal(r.StructuredContent)
	if err != nil {
		c.t.Fatal(err)
	}
	if out != nil {
		if err := json.Unmarshal(p, out); err != nil {
			c.t.Fatalf("%s: %s: %v", name, p, err)
		}
	}
	return r
}

// answer calls a tool with a progress token, and returns the result.
func (c *talk) answer(name string, in args) *sdk.CallToolResult {
	c.t.Helper()
	params := &sdk.CallToolParams{Name: name, Arguments: in}
	params.SetProgressToken("p")
	r, err := c.CallTool(c.t.Context(), params)
	if err != nil {
		c.t.Fatalf("%s(%v): %v", name, in, err)
	}
	return r
}

// fails calls a tool, which must fail with a text that contains the given words.
func (c *talk) fails(name string, in args, want ...string) *sdk.CallToolResult {
	c.t.Helper()
	r := c.answer(name, in)
	for _, w := range want {
		if !r.IsError || !strings.Contains(text(r), w) {
			c.t.Errorf("%s(%v): error %v: %s; want one with %q", name, in, r.IsError, text(r), w)
		}
	}
	return r
}

func text(r *sdk.CallToolResult) string {
	var parts []string
	for _, c := range r.Content {
		if t, ok := c.(*sdk.TextContent); ok {
			parts = append(parts, t.Text)
		}
	}
	return strings.Join(parts, "\n")
}

// spawn forks a sandbox and returns its id.
func (c *talk) spawn() string {
	c.t.Helper()
	var made struct{ Result []client.Sandbox }
	c.call("spawn_sandboxes", args{"snapshot_tag": "a.b"}, &made)
	if len(made.Result) != 1 || made.Result[0].MemoryLimitMiB != 256 {
		c.t.Fatalf("spawned: %+v", made)
	}
	return made.Result[0].ID
}
