package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/cluster/router"
	"github.com/forkd/forkd/internal/daemon/auth"
)

// cluster is a number of daemons behind a router.
type cluster struct {
	t      *testing.T
	file   string
	nodes  []map[string]any
	rigs   map[string]*apirig.Rig
	client *client.Client // of the router
}

// startCluster starts a daemon for each name, all with the snapshot a.b, and a router.
func startCluster(t *testing.T, options map[string]apirig.Options, names ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, file: filepath.Join(t.TempDir(), "nodes.json"), rigs: map[string]*apirig.Rig{}}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(apirig.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		o := options[name]
		o.Agent, o.Node, o.Dir = agentHere, name, t.TempDir()
		for _, key := range []string{"tokens.key", "links.key"} { // equal on all nodes, so that sandboxes can move
			if err := os.WriteFile(filepath.Join(o.Dir, key), make([]byte, 32), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		rig := apirig.Start(t, o)
		if _, err := rig.Bake(t.Context(), rig.Parent); err != nil {
			t.Fatal(err)
		}
		c.rigs[name] = rig
		c.nodes = append(c.nodes, map[string]any{"name": name, "url": rig.URL, "token_file": token})
	}
	c.write()
	r, err := router.New(router.Config{File: c.file, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	server := httptest.NewServer(r)
	t.Cleanup(func() { server.Close(); cancel(); <-done })
	t.Setenv(urlEnv, server.URL)
	t.Setenv(tokenEnv, apirig.Token)
	if c.client, err = client.New(server.URL, apirig.Token); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.client.Close)
	c.wait(func(all []client.RouterNode) bool {
		return !slices.ContainsFunc(all, func(n client.RouterNode) bool { return n.Error != "" })
	})
	return c
}

func (c *cluster) write() {
	c.t.Helper()
	text, err := json.Marshal(map[string]any{"nodes": c.nodes})
	if err == nil {
		err = os.WriteFile(c.file, text, 0o600)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// wait waits until the router says something about its nodes.
func (c *cluster) wait(until func([]client.RouterNode) bool) {
	c.t.Helper()
	for range 200 {
		if all, err := c.client.Nodes(c.t.Context()); err == nil && until(all.Nodes) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	c.t.Fatal("the router does not know the nodes")
}

// cordon cordons a node.
func (c *cluster) cordon(name string) {
	c.t.Helper()
	for _, n := range c.nodes {
		if n["name"] == name {
			n["cordoned"] = true
		}
	}
	c.write()
	c.wait(func(all []client.RouterNode) bool {
		return slices.ContainsFunc(all, func(n client.RouterNode) bool { return n.Name == name && n.Cordoned })
	})
}

// fork makes sandboxes on a node, and returns their sorted ids.
func (c *cluster) fork(node string, req client.ForkRequest) (ids []string) {
	c.t.Helper()
	req.SnapshotTag = "a.b"
	f, err := c.rigs[node].Fork(c.t.Context(), req)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, s := range f.Sandboxes {
		ids = append(ids, s.ID)
	}
	slices.Sort(ids)
	return ids
}

// ids returns the sorted ids of the sandboxes that are on nodes.
func (c *cluster) ids(nodes ...string) (ids []string) {
	c.t.Helper()
	for _, name := range nodes {
		list, err := c.rigs[name].Sandboxes(c.t.Context())
		if err != nil {
			c.t.Fatal(err)
		}
		for _, s := range list {
			ids = append(ids, s.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// run runs the command forkd drain.
func (c *cluster) run(args ...string) (code int, out, errs string) {
	var stdout, stderr bytes.Buffer
	code = Main(append([]string{"drain"}, args...), Stdio{In: strings.NewReader(""), Out: &stdout, Err: &stderr})
	return code, stdout.String(), stderr.String()
}

// A drain moves running and suspended sandboxes, and gives each node about the same number. They
// keep their ids and their states.
func TestDrain(t *testing.T) {
	c := startCluster(t, nil, "a", "b", "c")
	ids := c.fork("a", client.ForkRequest{N: 6, Labels: map[string]string{"app": "x"}})
	if _, err := c.client.Suspend(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := c.run("a"); code != exitError || !strings.Contains(errs, "not cordoned") || len(c.ids("a")) != 6 {
		t.Errorf("a node that is not cordoned: %d %s", code, errs)
	}
	c.cordon("a")
	code, out, errs := c.run("a")
	if code != 0 || errs != "" || len(c.ids("a")) != 0 || !slices.Equal(c.ids("b", "c"), ids) {
		t.Fatalf("%d %s %s: a has %v, b %v, c %v", code, out, errs, c.ids("a"), c.ids("b"), c.ids("c"))
	}
	if b := len(c.ids("b")); b < 2 || b > 4 {
		t.Errorf("b has %d sandboxes, c %d", b, len(c.ids("c")))
	}
	for i, id := range ids {
		want := "running"
		if i == 0 {
			want = "suspended"
		}
		if s, err := c.client.Sandbox(t.Context(), id); err != nil || s.State != want || s.Labels["app"] != "x" {
			t.Errorf("%s: %+v, %v", id, s, err)
		}
		if strings.Count(out, id) != 1 {
			t.Errorf("the output does not name %s once: %s", id, out)
		}
	}
	if code, out, errs := c.run("a", "-o", "json"); code != 0 || !strings.Contains(out, `"moved": []`) {
		t.Errorf("an empty node: %d %s %s", code, out, errs)
	}
}

// What cannot move stays usable. The command moves the other sandboxes, says what is left and why,
// and fails.
func TestDrainGoesOnAfterFailures(t *testing.T) {
	c := startCluster(t, nil, "a", "b")
	movable := c.fork("a", client.ForkRequest{N: 3})
	secret := c.fork("a", client.ForkRequest{N: 1, Network: &client.Network{Mode: "allow", Allow: []string{"example.com"},
		Secrets: []client.NetworkSecret{{Host: "example.com", Header: "Authorization", Value: "Bearer x"}}}})[0]
	c.cordon("a")
	code, out, errs := c.run("a")
	if code != exitError || !strings.Contains(errs, secret) || !strings.Contains(errs, "network.secrets") ||
		!strings.Contains(errs, "1 sandbox is left, 3 moved") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	if !slices.Equal(c.ids("b"), movable) || !slices.Equal(c.ids("a"), []string{secret}) {
		t.Errorf("a has %v, b %v", c.ids("a"), c.ids("b"))
	}
	if s, err := c.client.Sandbox(t.Context(), secret); err != nil || s.State != "running" {
		t.Errorf("%+v, %v", s, err)
	}
	if code, out, _ = c.run("a", "-o", "json"); code != exitError || !strings.Contains(out, secret) {
		t.Errorf("repeated: %d %s", code, out)
	}
}

// --to restricts the nodes. Wrong arguments move nothing.
func TestArgumentsOfDrain(t *testing.T) {
	c := startCluster(t, nil, "a", "b", "c")
	c.fork("a", client.ForkRequest{N: 3})
	c.cordon("a")
	if code, out, errs := c.run("a", "--to", "c"); code != 0 || len(c.ids("c")) != 3 {
		t.Errorf("%d %s %s: c has %v", code, out, errs, c.ids("c"))
	}
	for _, wrong := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"x"}, exitUsage, "the nodes are a, b, c"},
		{[]string{"a", "--to", "b,x"}, exitUsage, "there is no such node"},
		{[]string{"b", "--to", "a"}, exitError, "not cordoned"},
		{[]string{"b", "--force", "--to", "a"}, exitUsage, "this node is cordoned"},
		{[]string{"a", "--to", "a"}, exitUsage, "the node to empty"},
		{[]string{"a", "--parallel", "0"}, exitUsage, "want 1 to 32"},
	} {
		if code, _, errs := c.run(wrong.args...); code != wrong.code || !strings.Contains(errs, wrong.want) {
			t.Errorf("%q: %d %s", wrong.args, code, errs)
		}
	}
	t.Setenv(urlEnv, c.rigs["a"].URL)
	if code, _, errs := c.run("a"); code != exitError || !strings.Contains(errs, "is no router") {
		t.Errorf("without a router: %d %s", code, errs)
	}
}

// Another node refuses all sandboxes because its keys differ, so they go to the third node.
func TestDrainWithARefusingNode(t *testing.T) {
	c := startCluster(t, nil, "a", "b", "c")
	if err := os.WriteFile(filepath.Join(filepath.Dir(c.rigs["b"].TokenFile), "links.key"), bytes.Repeat([]byte{1}, 32),
		0o600); err != nil {
		t.Fatal(err)
	}
	ids := c.fork("a", client.ForkRequest{N: 3})
	c.cordon("a")
	code, out, errs := c.run("a", "--parallel", "1")
	if code != 0 || !slices.Equal(c.ids("c"), ids) {
		t.Errorf("%d %s %s: b has %v, c %v", code, out, errs, c.ids("b"), c.ids("c"))
	}
	if code, _, errs := c.run("c", "--force", "--to", "b"); code != exitError || !strings.Contains(errs, "links.key") ||
		!strings.Contains(errs, "3 sandboxes are left, 0 moved") || !slices.Equal(c.ids("c"), ids) {
		t.Errorf("to the refusing node only: %d %s; c has %v", code, errs, c.ids("c"))
	}
	for _, id := range ids {
		if s, err := c.client.Sandbox(t.Context(), id); err != nil || s.State != "running" {
			t.Errorf("%+v, %v", s, err)
		}
	}
}

// The command is killed at every point of a move. A second command completes the drain.
func TestKilledDrain(t *testing.T) {
	for _, point := range []string{"leaving", "pulled", "arriving", "active", "gone"} {
		t.Run(point, func(t *testing.T) {
			var once sync.Once
			reached, ended := make(chan struct{}), make(chan struct{})
			fault := func(at string) {
				if at == point {
					once.Do(func() { close(reached); <-ended })
				}
			}
			c := startCluster(t, map[string]apirig.Options{"a": {MoveFault: fault}, "b": {MoveFault: fault}}, "a", "b")
			ids := c.fork("a", client.ForkRequest{N: 4})
			c.cordon("a")
			cmd := exec.Command("forkd", "drain", "a", "--parallel", "2")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-reached:
			case <-time.After(time.Minute):
				t.Error("the drain does not reach this point")
			}
			if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) {
				t.Errorf("the killed command: %v", err)
			}
			close(ended)
			if code, out, errs := c.run("a"); code != 0 {
				t.Errorf("%d %s %s", code, out, errs)
			}
			if len(c.ids("a")) != 0 || !slices.Equal(c.ids("b"), ids) {
				t.Errorf("a has %v, b %v, want %v", c.ids("a"), c.ids("b"), ids)
			}
		})
	}
}

// The list of nodes shows addresses and loads, so it needs the rights that other lists of all
// clients need.
func TestRightsOnTheListOfNodes(t *testing.T) {
	o := apirig.Options{Tokens: []auth.Token{{Name: "reader", Scope: auth.Read},
		{Name: "tenant", Scope: auth.Read, Prefix: "t/"}}}
	c := startCluster(t, map[string]apirig.Options{"a": o}, "a")
	for name, want := range map[string]bool{"reader": true, "tenant": false, "": false} {
		cl, err := client.New(c.client.Address(), c.rigs["a"].Tokens[name], client.WithRetries(0))
		if err != nil {
			t.Fatal(err)
		}
		all, err := cl.Nodes(t.Context())
		if (err == nil) != want || want && (len(all.Nodes) != 1 || all.Nodes[0].URL != c.rigs["a"].URL) {
			t.Errorf("%q: %+v, %v", name, all, err)
		}
		cl.Close()
	}
	c.rigs["a"].Server.Close()
	if all, err := c.client.Nodes(t.Context()); err == nil {
		t.Errorf("without any node: %+v", all)
	}
}
