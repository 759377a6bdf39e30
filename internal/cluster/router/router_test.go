package router

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/host/admit"
)

func stringReader(s string) io.Reader { return strings.NewReader(s) }

// Through two routers, the Go client can use the sandboxes of several nodes in the same way as the
// sandboxes of one daemon.
func TestSandboxesOfSeveralNodes(t *testing.T) {
	c := start(t, apirig.Options{}, "a", "b", "c")
	ctx, nodes := t.Context(), map[string]int{}
	var made []string
	for i := range 6 {
		id := c.fork(i%2, client.ForkRequest{Labels: map[string]string{"n": fmt.Sprint(i % 2)}})
		nodes[c.nodeOf(id)]++
		made = append(made, id)
	}
	if nodes["a"]+nodes["b"]+nodes["c"] != len(made) {
		t.Errorf("sandboxes by node: %v", nodes)
	}
	c.checkLists(made)
	for i, id := range made[:2] {
		c.use(c.clients[i%2], id)
	}
	source := made[0]
	if id := c.fork(1, client.ForkRequest{SourceID: source}); c.nodeOf(id) != c.nodeOf(source) {
		t.Errorf("a fork of a sandbox is on %q, its source on %q", c.nodeOf(id), c.nodeOf(source))
	}
	// The other router does not know the new snapshot yet, but finds it.
	if _, err := c.clients[0].Branch(ctx, source, client.BranchRequest{Tag: "fresh"}); err != nil {
		t.Fatal(err)
	}
	if id := c.fork(1, client.ForkRequest{SnapshotTag: "fresh"}); c.nodeOf(id) != c.nodeOf(source) {
		t.Errorf("a fork of a branch is on %q, the branch on %q", c.nodeOf(id), c.nodeOf(source))
	}
	if list, err := c.clients[1].Snapshots(ctx); err != nil || len(list) < 2 || list[0].Tag != "a.b" ||
		slices.IndexFunc(list[1:], func(s client.Snapshot) bool { return s.Tag == "a.b" }) >= 0 {
		t.Errorf("snapshots: %+v, %v", list, err)
	}
	if s, err := c.clients[1].Snapshot(ctx, "fresh"); err != nil || s.SandboxID != source {
		t.Errorf("snapshot: %+v, %v", s, err)
	}
	_, err := c.clients[0].Fork(ctx, client.ForkRequest{SnapshotTag: "none", N: 1})
	if !errors.Is(err, client.ErrSnapshotNotFound) {
		t.Errorf("fork of an unknown snapshot: %v", err)
	}
	if v, err := c.clients[0].Version(ctx); err != nil || v.Node != "a" {
		t.Errorf("version: %+v, %v", v, err)
	}
	c.servers[0].CloseClientConnections()
	c.servers[0].Close() // a router dies
	r, err := c.clients[1].Exec(ctx, source, client.ExecRequest{Args: []string{"echo", "alive"}})
	if err != nil || r.Stdout != "alive\n" {
		t.Errorf("exec through the other router: %+v, %v", r, err)
	}
	for _, id := range ids(t, c.clients[1]) {
		if err := c.clients[1].Kill(ctx, id); err != nil {
			t.Error(err)
		}
	}
	if left := ids(t, c.rigs["a"].Client); len(left) > 0 || len(ids(t, c.clients[1])) > 0 {
		t.Errorf("left: %v", left)
	}
}

// checkLists checks that both routers list all sandboxes, oldest first, in pages of every size.
func (c *cluster) checkLists(made []string) {
	c.t.Helper()
	for i, cl := range c.clients {
		if got := ids(c.t, cl); !slices.Equal(got, made) {
			c.t.Errorf("router %d lists %v, want %v", i, got, made)
		}
	}
	for limit := 1; limit <= len(made)+1; limit++ {
		var got []string
		req := client.PageRequest{Limit: limit}
		for page := 0; page == 0 || req.Cursor != ""; page++ {
			list, next, err := c.clients[page%2].SandboxPage(c.t.Context(), req) // a cursor is valid at every router
			if err != nil || len(list) > limit || page > len(made) {
				c.t.Fatalf("limit %d, page %d: %d, %v", limit, page, len(list), err)
			}
			for _, s := range list {
				got = append(got, s.ID)
			}
			req.Cursor = next
		}
		if !slices.Equal(got, made) {
			c.t.Errorf("limit %d: %v, want %v", limit, got, made)
		}
	}
	odd, _, err := c.clients[0].SandboxPage(c.t.Context(), client.PageRequest{Labels: []string{"n=1"}})
	if err != nil || len(odd) != len(made)/2 {
		c.t.Errorf("with a label: %d, %v", len(odd), err)
	}
}

// use makes every kind of request that a router passes on for a sandbox.
func (c *cluster) use(cl *client.Client, id string) {
	t := c.t
	t.Helper()
	ctx := t.Context()
	if p, err := cl.Ping(ctx, id); err != nil || !p.Pong {
		t.Errorf("ping: %+v, %v", p, err)
	}
	var out bytes.Buffer
	count := client.ExecRequest{Args: []string{"sh", "-c", "seq 1 20000; exit 4"}}
	if end, err := cl.ExecStream(ctx, id, count, &out, nil); err != nil ||
		end.ExitCode != 4 || strings.Count(out.String(), "\n") != 20000 {
		t.Errorf("exec in lines: %+v, %v, %d bytes", end, err, out.Len())
	}
	p, err := cl.StartExec(ctx, id, client.ExecRequest{Args: []string{"cat"}, OpenStdin: true}) // a WebSocket
	if err != nil {
		t.Fatal(err)
	}
	var echo bytes.Buffer
	go func() { // Write may block until Wait reads the output
		if _, err := p.Write([]byte("through the router")); err != nil {
			t.Error(err)
		}
		if err := p.CloseStdin(); err != nil {
			t.Error(err)
		}
	}()
	if end, err := p.Wait(&echo, nil); err != nil || end.ExitCode != 0 || echo.String() != "through the router" {
		t.Errorf("process: %+v, %v, %q", end, err, echo.String())
	}
	content := make([]byte, 3<<20)
	_, _ = rand.Read(content)
	path := filepath.Join(t.TempDir(), "file")
	if err := cl.WriteFile(ctx, id, path, bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	back, err := cl.ReadFile(ctx, id, path)
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	if got, err := io.ReadAll(back); err != nil || !bytes.Equal(got, content) {
		t.Errorf("file: %d bytes, %v", len(got), err)
	}
}

// If a node is lost, only its own sandboxes are lost, and every error names the node.
func TestLostNode(t *testing.T) {
	c := start(t, apirig.Options{}, "a", "b")
	ctx, on := t.Context(), map[string]string{}
	for len(on) < 2 {
		id := c.fork(0, client.ForkRequest{})
		on[c.nodeOf(id)] = id
		other := map[string]string{"a": "b", "b": "a"}[c.nodeOf(id)]
		c.setCordoned(c.nodeOf(id), true)
		c.setCordoned(other, false)
	}
	c.setCordoned("a", false)
	c.setCordoned("b", false)
	p, err := c.clients[0].StartExec(ctx, on["b"], client.ExecRequest{Args: []string{"sleep", "600"}})
	if err != nil {
		t.Fatal(err)
	}
	c.relays["b"].set(true, false)
	if end, err := p.Wait(nil, nil); err == nil {
		t.Errorf("a process on the lost node: %+v", end)
	}
	c.fresh()
	if _, err := c.clients[1].Exec(ctx, on["b"], client.ExecRequest{Args: []string{"true"}}); err == nil ||
		!strings.Contains(err.Error(), "node b") {
		t.Errorf("exec on the lost node: %v", err)
	}
	if _, err := c.clients[1].Sandboxes(ctx); err == nil || !strings.Contains(err.Error(), "node b") {
		t.Errorf("list: %v", err)
	}
	resp, body := get(t, "GET", c.servers[0].URL+"/v1/sandboxes?partial=true", apirig.Token, "", nil)
	if resp.StatusCode != http.StatusOK || resp.Header.Get(missingHeader) != "b" || !strings.Contains(body, on["a"]) ||
		strings.Contains(body, on["b"]) {
		t.Errorf("partial list: %s %v, %s", resp.Status, resp.Header, body)
	}
	for range 4 {
		if id := c.fork(1, client.ForkRequest{}); c.nodeOf(id) != "a" {
			t.Errorf("a fork is on %q", c.nodeOf(id))
		}
	}
	c.relays["b"].set(false, false)
	c.fresh()
	if r, err := c.clients[1].Exec(ctx, on["b"], client.ExecRequest{Args: []string{"true"}}); err != nil ||
		r.ExitCode != 0 {
		t.Errorf("exec when the node is back: %+v, %v", r, err)
	}
	if got := ids(t, c.clients[0]); len(got) != 6 {
		t.Errorf("%d sandboxes when the node is back", len(got))
	}
	c.entries = c.entries[:1]
	c.write()
	c.fresh()
	if _, err := c.clients[0].Sandbox(ctx, on["b"]); !errors.Is(err, client.ErrSandboxNotFound) {
		t.Errorf("a sandbox of a removed node: %v", err)
	}
}

func (c *cluster) setCordoned(name string, cordoned bool) {
	c.t.Helper()
	for i := range c.entries {
		if c.entries[i].Name == name {
			c.entries[i].Cordoned = cordoned
		}
	}
	c.write()
	c.fresh()
}

// If a node accepts connections but does not answer, it delays only requests that need it.
func TestSilentNode(t *testing.T) {
	c := start(t, apirig.Options{}, "a", "b")
	c.relays["a"].set(false, true)
	r := routerOf(t, c.file, func(r *Router) { r.listTimeout /= 10 })
	server := httptest.NewServer(r)
	defer server.Close()
	for range 3 {
		resp, body := get(t, "POST", server.URL+"/v1/forks", apirig.Token, `{"snapshot_tag": "a.b"}`, nil)
		if resp.StatusCode != http.StatusCreated {
			t.Errorf("%s %s", resp.Status, body)
		}
	}
	if n := len(ids(t, c.rigs["b"].Client)); n != 3 {
		t.Errorf("node b has %d sandboxes", n)
	}
	resp, body := get(t, "GET", server.URL+"/v1/sandboxes", apirig.Token, "", nil)
	if resp.StatusCode < 500 || !strings.Contains(body, "node a") {
		t.Errorf("list: %s %s", resp.Status, body)
	}
}

// Whichever router gets a repeated request, the answer is that of the node that has executed the
// request, even if another node is the best one by then.
func TestRepeatedRequest(t *testing.T) {
	c := start(t, apirig.Options{}, "a", "b", "c")
	key, body := http.Header{"Idempotency-Key": {"k"}}, `{"snapshot_tag": "a.b", "n": 2}`
	resp, first := get(t, "POST", c.servers[0].URL+"/v1/forks", apirig.Token, body, key)
	if resp.StatusCode != http.StatusCreated || resp.Header.Get("Idempotency-Replayed") != "" {
		t.Fatalf("%s %s", resp.Status, first)
	}
	c.setCordoned(c.nodeOf(ids(t, c.clients[0])[0]), true)
	for i, s := range c.servers {
		resp, again := get(t, "POST", s.URL+"/v1/forks", apirig.Token, body, key)
		if resp.StatusCode != http.StatusCreated || again != first || resp.Header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("router %d: %s %s, want %s", i, resp.Status, again, first)
		}
	}
	resp, other := get(t, "POST", c.servers[1].URL+"/v1/forks", apirig.Token, `{"snapshot_tag": "a.b"}`, key)
	if resp.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("another request with the key: %s %s", resp.Status, other)
	}
	if n := len(ids(t, c.clients[0])); n != 2 {
		t.Errorf("%d sandboxes, want 2", n)
	}
	c.relays["c"].set(true, false) // this node may have executed the request
	key.Set("Idempotency-Key", "other")
	if resp, text := get(t, "POST", c.servers[1].URL+"/v1/forks", apirig.Token, body, key); resp.StatusCode !=
		http.StatusServiceUnavailable && resp.StatusCode != http.StatusBadGateway || !strings.Contains(text, "node c") {
		t.Errorf("while a node is lost: %s %s", resp.Status, text)
	}
}

// If a node is full, a sandbox goes to the next node. If all nodes are full, the client gets the
// refusal of the last node's daemon.
func TestFullNodes(t *testing.T) {
	c := start(t, apirig.Options{Admit: admit.Rules{MaxSandboxes: 2}}, "a", "b")
	nodes := map[string]int{}
	for i := range 4 {
		nodes[c.nodeOf(c.fork(i%2, client.ForkRequest{}))]++
	}
	if nodes["a"] != 2 || nodes["b"] != 2 {
		t.Errorf("sandboxes by node: %v", nodes)
	}
	_, err := c.clients[1].Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1})
	if !errors.Is(err, client.ErrMaxSandboxes) {
		t.Errorf("a fifth sandbox: %v", err)
	}
}

// E2B's requests reach the node of a sandbox by path, by header and by host name.
func TestE2B(t *testing.T) {
	c := start(t, apirig.Options{}, "a", "b")
	key := http.Header{"X-Api-Key": {apirig.Token}}
	resp, body := get(t, "POST", c.servers[0].URL+"/sandboxes", "", `{"templateID": "a.b"}`, key)
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("%s %s", resp.Status, body)
	}
	id := ids(t, c.clients[1])[0]
	if resp, body := get(t, "GET", c.servers[1].URL+"/sandboxes/"+id, "", "", key); resp.StatusCode !=
		http.StatusOK || !strings.Contains(body, id) {
		t.Errorf("%s %s", resp.Status, body)
	}
	mounts := `{"templateID": "a.b", "volumeMounts": [{"name": "a", "path": "/a"}]}`
	if resp, body := get(t, "POST", c.servers[0].URL+"/sandboxes", "", mounts, key); resp.StatusCode !=
		http.StatusNotImplemented || !strings.Contains(body, "volumes") {
		t.Errorf("a sandbox with a volume: %s %s", resp.Status, body)
	}
	if resp, body := get(t, "GET", c.servers[1].URL+"/v2/sandboxes", "", "", key); resp.StatusCode !=
		http.StatusNotImplemented || !strings.Contains(body, `"message"`) {
		t.Errorf("list: %s %s", resp.Status, body)
	}
	if resp, body := get(t, "GET", c.servers[1].URL+"/health", "", "", http.Header{"E2b-Sandbox-Id": {id},
		"E2b-Sandbox-Port": {"49983"}}); resp.StatusCode >= 500 || strings.Contains(body, "not_routed") {
		t.Errorf("the agent: %s %s", resp.Status, body)
	}
}
