package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
)

// move moves a sandbox through a router, as the CLI does.
func (c *cluster) move(router int, id, to string) (client.Sandbox, error) {
	cl := c.clients[router]
	return client.Move(c.t.Context(), id, client.MoveHost{Client: cl}, client.MoveHost{Client: cl, Node: to},
		func(node string) (string, error) { return c.relays[node].Addr().String(), nil })
}

func other(name string) string { return map[string]string{"a": "b", "b": "a"}[name] }

// When a sandbox moves, it keeps its id, its names and its rules, and both routers find it
// immediately. They also find it if the node that made it is lost. The sandbox can return to that
// node.
func TestSandboxMoves(t *testing.T) {
	c := start(t, apirig.Options{}, "a", "b")
	id := c.fork(0, client.ForkRequest{Labels: map[string]string{"app": "web"}, Env: map[string]string{"X": "1"},
		Network: &client.Network{Mode: "none"}, IdleTimeoutSecs: 3600, TTLSecs: 7200,
		Hooks: &client.Hooks{AfterResume: &client.Hook{Args: []string{"true"}}}})
	from := c.nodeOf(id)
	to := other(from)
	before, err := c.clients[0].Sandbox(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	after, err := c.move(0, id, to)
	if err != nil {
		t.Fatal(err)
	}
	if c.nodeOf(id) != to || after.State != "running" {
		t.Fatalf("the sandbox is on %q and %s", c.nodeOf(id), after.State)
	}
	// A suspension counts as a branch. The snapshot of the latest branch is on the first node only.
	after.HasBranched, after.BranchCount, after.LatestTag = before.HasBranched, before.BranchCount, before.LatestTag
	before.VMMMS, before.ReadyMS, after.VMMMS, after.ReadyMS, before.Calls, after.Calls = nil, nil, nil, nil, nil, nil
	if !reflect.DeepEqual(before, after) {
		t.Errorf("before the move:\n%+v\nafter it:\n%+v", before, after)
	}
	// The second router has not asked the nodes since the move.
	if _, err := c.clients[1].Exec(t.Context(), id, client.ExecRequest{Args: []string{"true"}}); err != nil {
		t.Errorf("exec through the other router: %v", err)
	}
	resp, body := get(t, "GET", c.servers[1].URL+"/sandboxes/"+id, "", "", http.Header{"X-Api-Key": {apirig.Token}})
	if resp.StatusCode != http.StatusOK {
		t.Errorf("E2B's API through the other router: %d %s", resp.StatusCode, body)
	}
	c.fresh()
	for i, cl := range c.clients {
		if all := ids(t, cl); len(all) != 1 || all[0] != id {
			t.Errorf("router %d lists %v", i, all)
		}
		if _, err := cl.Exec(t.Context(), id, client.ExecRequest{Args: []string{"true"}}); err != nil {
			t.Errorf("exec through router %d: %v", i, err)
		}
	}
	// The daemon of the first node names the other one, and keeps nothing else of the sandbox.
	resp, body = get(t, "GET", c.rigs[from].URL+"/v1/sandboxes/"+id, apirig.Token, "", nil)
	if resp.StatusCode != http.StatusNotFound || resp.Header.Get("Forkd-Node") != to ||
		!strings.Contains(body, "sandbox_moved") {
		t.Errorf("the first node answers %d %v %s", resp.StatusCode, resp.Header, body)
	}
	c.rigs[from].Store.Quiesce()
	for _, s := range c.rigs[from].Store.List() {
		if strings.HasPrefix(s.Tag, "suspended-") {
			t.Errorf("the first node still has the snapshot %s", s.Tag)
		}
	}

	c.relays[from].set(true, false) // the node that made the sandbox is lost
	c.fresh()
	if _, err := c.clients[0].Sandbox(t.Context(), id); err != nil {
		t.Errorf("the first node is lost: %v", err)
	}
	late := routerOf(t, c.file) // this router has never heard from the lost node
	if n := late.ownerOf(id); n == nil || n.Name != to {
		t.Errorf("a new router sends the sandbox's requests to %v", n)
	}
	c.relays[from].set(false, false)
	c.fresh()

	if _, err := c.move(1, id, from); err != nil {
		t.Fatalf("move back: %v", err)
	}
	if c.nodeOf(id) != from {
		t.Errorf("after the way back, the sandbox is on %q", c.nodeOf(id))
	}
	c.fresh()
	for _, cl := range c.clients {
		if s, err := cl.Sandbox(t.Context(), id); err != nil || s.State != "running" {
			t.Errorf("after the way back: %v %v", s, err)
		}
	}
	if err := c.clients[0].Kill(t.Context(), id); err != nil {
		t.Error(err)
	}
}

// A node cannot take part in moves of sandboxes of another node, and its lists of moves are bounded.
func TestHostileMoves(t *testing.T) {
	own, others, gone := idOn("evil"), idOn("good"), idOn("good")
	good := &fake{name: "good", moves: fmt.Sprintf(`{"moves": [{"id": %q, "phase": "gone", "node": "evil"}]}`, gone)}
	evil := &fake{name: "evil"}
	var list []string
	for _, id := range []string{own, others, gone} {
		list = append(list, fmt.Sprintf(`{"id": %q, "phase": "left", "node": "x"}`, id))
	}
	evil.moves = `{"moves": [` + strings.Join(list, ",") + strings.Repeat(",{}", 2*maxMembers) + `], "foreign": [` +
		strings.Repeat(`"",`, 2*maxMembers) + `""]}`
	path, token := filepath.Join(t.TempDir(), "nodes.json"), filepath.Join(t.TempDir(), "token")
	var nodes []entry
	for _, f := range []*fake{good, evil} {
		server := httptest.NewServer(f)
		t.Cleanup(server.Close)
		nodes = append(nodes, entry{Name: f.name, URL: server.URL, TokenFile: token})
	}
	text, err := json.Marshal(file{nodes})
	if err = errors.Join(err, os.WriteFile(path, text, 0o600), os.WriteFile(token, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	router := routerOf(t, path)
	if n := router.ownerOf(others); n == nil || n.Name != "good" {
		t.Errorf("requests for the sandbox of another node go to %v", n)
	}
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)
	resp, body := get(t, "GET", server.URL+"/v1/moves", "token", "", nil)
	var all client.Moves
	if err := json.Unmarshal([]byte(body), &all); err != nil || len(all.Nodes) != 2 {
		t.Fatalf("%s %.200s", resp.Status, body)
	}
	for _, n := range all.Nodes {
		if len(n.Moves) > maxMembers || len(n.Foreign) > maxMembers {
			t.Errorf("%s: %d moves, %d foreign sandboxes", n.Node, len(n.Moves), len(n.Foreign))
		}
		for _, m := range n.Moves {
			if n.Node == "evil" && m.ID != own && m.ID != gone {
				t.Errorf("a node lists the move %+v", m)
			}
		}
		if n.Error != "" || len(n.Moves) == 0 {
			t.Errorf("%s: %+v", n.Node, n)
		}
	}
}
