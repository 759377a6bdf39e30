package mcp_test

import (
	"context"
	"net/http"
	"os"
	"slices"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/mcp"
)

// leaving is a transport. When the daemon has answered a POST that creates an object, the transport
// calls answered().
type leaving struct {
	answered func()
}

// RoundTrip implements http.RoundTripper.
func (l *leaving) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(r)
	if r.Method == http.MethodPost && l.answered != nil {
		l.answered()
	}
	return resp, err
}

// over returns the rig's client with another transport.
func over(rig *apirig.Rig, rt http.RoundTripper) *client.Client {
	return client.Over(addressed{rig.URL, rt})
}

// addressed is a transport that sends requests to the daemon at url, with the rig's token.
type addressed struct {
	url  string
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (a addressed) RoundTrip(r *http.Request) (*http.Response, error) {
	there, err := http.NewRequestWithContext(r.Context(), r.Method, a.url+r.URL.RequestURI(), r.Body)
	if err != nil {
		return nil, err
	}
	there.Header = r.Header.Clone()
	there.Header.Set("Authorization", "Bearer "+apirig.Token)
	there.ContentLength = r.ContentLength
	return a.next.RoundTrip(there)
}

// Only the answer tells a caller the ids of the objects that a call has made. So if a call is
// cancelled, no matter when, it removes these objects.
func TestCancelledCallsLeaveNothing(t *testing.T) {
	rig := start(t)
	source, err := rig.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := source.Sandboxes[0].ID
	there := func() (names []string) {
		snapshots, err := rig.Snapshots(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range snapshots {
			names = append(names, s.Tag)
		}
		return append(names, sandboxes(t, rig)...)
	}
	for _, c := range []struct {
		tool string
		in   args
		keep string // tag that the caller has chosen; the snapshot stays
	}{
		{"spawn_sandboxes", args{"snapshot_tag": "a.b", "n": 2}, ""},
		{"fork", args{"sandbox_id": id, "n": 2}, ""},
		{"fork_and_run", args{"sandbox_id": id, "command": "true", "attempts": 2, "keep": "all"}, ""},
		{"branch", args{"sandbox_id": id}, ""},
		{"branch", args{"sandbox_id": id, "tag": "named", "n": 2}, "named"},
		{"branch_sandbox", args{"sandbox_id": id}, ""},
	} {
		t.Run(c.tool+" "+c.keep, func(t *testing.T) {
			before := there()
			ctx, cancel := context.WithCancel(t.Context())
			called, ended := make(chan context.Context, 1), make(chan struct{})
			rt := &leaving{}
			server := mcp.New("test").Server(t.Context(), over(rig, rt), mcp.Run)
			server.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
				return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
					if method != "tools/call" {
						return next(ctx, method, req)
					}
					called <- ctx
					defer close(ended)
					return next(ctx, method, req)
				}
			})
			rt.answered = func() { // wait until the server has noticed that its client has left
				cancel()
				select {
				case ctx := <-called:
					<-ctx.Done()
				default: // the server has noticed
				}
			}
			here, far := sdk.NewInMemoryTransports()
			if _, err := server.Connect(t.Context(), far, nil); err != nil {
				t.Fatal(err)
			}
			if r, err := join(t, here, nil).CallTool(ctx, &sdk.CallToolParams{Name: c.tool, Arguments: c.in}); err == nil {
				t.Fatalf("answered: %s", text(r))
			}
			want := before
			if c.keep != "" {
				want = append([]string{c.keep}, before...)
			}
			slices.Sort(want)
			<-ended
			got := there()
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Fatalf("left: %v, want %v", got, want)
			}
		})
	}
}

// At the end of its input, the program exits only after it has removed the objects of a cancelled
// call.
func TestStdioEndsWithNothingLeft(t *testing.T) {
	rig := start(t)
	in, toServer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fromServer, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	rt := &leaving{answered: stop}
	ended := make(chan error, 1)
	go func() { ended <- mcp.New("test").ServeStdio(ctx, over(rig, rt), mcp.Run, in, out) }()
	c := join(t, &sdk.IOTransport{Reader: fromServer, Writer: toServer}, nil)
	go func() {
		_, _ = c.CallTool(t.Context(), &sdk.CallToolParams{Name: "spawn_sandboxes", // there may be no answer
			Arguments: args{"snapshot_tag": "a.b", "n": 3}})
	}()
	if err := <-ended; err == nil {
		t.Error("ended without having been stopped")
	}
	if left := sandboxes(t, rig); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
