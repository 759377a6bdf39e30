package mcp_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/mcp"
)

func (c *talk) read(uri string) (string, error) {
	r, err := c.ReadResource(c.t.Context(), &sdk.ReadResourceParams{URI: uri})
	if err != nil {
		return "", err
	}
	if len(r.Contents) != 1 || r.CacheScope == "public" || r.TTLMs != 0 {
		c.t.Errorf("%s: %+v", uri, r)
	}
	return r.Contents[0].Text + string(r.Contents[0].Blob), nil
}

func TestResources(t *testing.T) {
	c := connect(t, start(t).Client, mcp.Run)
	id := c.spawn()
	file := filepath.Join(t.TempDir(), "a b")
	if err := os.WriteFile(file, []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	for uri, want := range map[string]string{
		"forkd://snapshots":                    `"tag":"a.b"`,
		"forkd://snapshots/a.b":                `"chain_depth"`,
		"forkd://sandboxes":                    id,
		"forkd://sandboxes/" + id:              `"state":"running"`,
		"forkd://sandboxes/" + id + "/console": "",
		"forkd://sandboxes/" + id + "/files" + strings.ReplaceAll(file, " ", "%20"): "content",
	} {
		if got, err := c.read(uri); err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %s, %v; want %s", uri, got, err, want)
		}
	}
	for _, uri := range []string{"forkd://snapshots/none", "forkd://sandboxes/sb-x", "forkd://sandboxes/",
		"forkd://else", "forkd://sandboxes/sb-x/y",
		"forkd://sandboxes/" + id + "/files/none/of/them"} {
		_, err := c.read(uri)
		var wire *jsonrpc.Error
		//lint:ignore SA1019 clients of older revisions are told this code
		if !errors.As(err, &wire) || wire.Code != sdk.CodeResourceNotFound && wire.Code != jsonrpc.CodeInvalidParams {
			t.Errorf("%s: %v", uri, err)
		}
	}
	templates, err := connect(t, nil, mcp.Read).ListResourceTemplates(t.Context(), nil)
	if err != nil || len(templates.ResourceTemplates) != 2 {
		t.Errorf("templates of read: %+v, %v", templates, err)
	}
}

// A client that has subscribed to a resource is notified of every change until it unsubscribes.
// (With the newest version of the protocol, the SDK's client does not wait for the subscription, so
// package mcphttp tests that version.)
func TestSubscriptions(t *testing.T) {
	c := connectWith(t, start(t).Client, mcp.Run, &sdk.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	id, other := c.spawn(), c.spawn()
	for _, uri := range []string{"forkd://sandboxes/" + id, "forkd://snapshots"} {
		if err := c.Subscribe(t.Context(), &sdk.SubscribeParams{URI: uri}); err != nil {
			t.Fatal(err)
		}
	}
	for _, uri := range []string{"forkd://sandboxes/sb-x", "forkd://none", "forkd://sandboxes/" + id + "/files/x"} {
		if err := c.Subscribe(t.Context(), &sdk.SubscribeParams{URI: uri}); err == nil {
			t.Errorf("%s: subscribed", uri)
		}
	}
	wants := func(uri string) {
		t.Helper()
		for deadline := time.After(time.Minute); ; {
			select {
			case got := <-c.updated:
				if strings.Contains(got, other) {
					t.Errorf("told of %s", got)
				}
				if got == uri {
					return
				}
			case <-deadline:
				t.Fatalf("not told of %s", uri)
			}
		}
	}
	c.call("set_state", args{"sandbox_id": other, "state": "paused"}, nil)
	c.call("set_state", args{"sandbox_id": id, "state": "paused"}, nil)
	wants("forkd://sandboxes/" + id)
	c.call("branch", args{"sandbox_id": other}, nil)
	wants("forkd://snapshots")
	for _, uri := range []string{"forkd://sandboxes/" + id, "forkd://snapshots"} {
		if err := c.Unsubscribe(t.Context(), &sdk.UnsubscribeParams{URI: uri}); err != nil {
			t.Fatal(err)
		}
	}
	console := "forkd://sandboxes/" + id + "/console"
	if err := c.Subscribe(t.Context(), &sdk.SubscribeParams{URI: console}); err != nil {
		t.Fatal(err)
	}
	for len(c.updated) > 0 {
		<-c.updated
	}
	c.call("kill_sandbox", args{"sandbox_id": id}, nil)
	wants(console) // notified of the end of the console
	c.call("kill_sandbox", args{"sandbox_id": other}, nil)
	if len(c.updated) > 0 {
		t.Errorf("told of %s after the end", <-c.updated)
	}
}

// Over standard input and output, each message is one line, in both directions.
func TestStdio(t *testing.T) {
	rig := start(t)
	in, toServer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fromServer, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- mcp.New("test").ServeStdio(t.Context(), rig.Client, mcp.Admin, in, out) }()
	c := join(t, &sdk.IOTransport{Reader: fromServer, Writer: toServer}, nil)
	if id := c.spawn(); !strings.HasPrefix(id, "sb-") {
		t.Errorf("spawned %q", id)
	}
	var list struct{ Result []client.Sandbox }
	if c.call("list_sandboxes", nil, &list); len(list.Result) != 1 {
		t.Errorf("listed %+v", list)
	}
	c.Close()
	toServer.Close()
	if err := <-ended; err != nil {
		t.Errorf("at the end of input: %v", err)
	}
}
