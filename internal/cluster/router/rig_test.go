package router

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/guest/agent"
)

func TestMain(m *testing.M) { apirig.Main(m, agent.Main) }

// relay passes TCP connections on to a daemon, until it is cut.
type relay struct {
	net.Listener
	to string

	mu    sync.Mutex
	cut   bool // connections are closed immediately
	stall bool // connections are accepted, and get no answer
	conns map[net.Conn]bool
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: l, to: to, conns: map[net.Conn]bool{}}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.carry(c)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		r.set(true, false)
	})
	return r
}

func (r *relay) carry(c net.Conn) {
	r.mu.Lock()
	cut, stall := r.cut, r.stall
	r.conns[c] = true
	r.mu.Unlock()
	if stall {
		return // r.set closes the connection
	}
	to, err := net.Dial("tcp", r.to)
	if err != nil || cut {
		c.Close()
		return
	}
	r.mu.Lock()
	r.conns[to] = true
	r.mu.Unlock()
	go func() { _, _ = io.Copy(to, c); to.Close() }()
	_, _ = io.Copy(c, to)
	c.Close()
}

// set closes all connections, and determines what happens to new ones.
func (r *relay) set(cut, stall bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut, r.stall = cut, stall
	for c := range r.conns {
		c.Close()
	}
	clear(r.conns)
}

// cluster is a number of daemons behind routers.
type cluster struct {
	t       *testing.T
	file    string
	entries []entry
	rigs    map[string]*apirig.Rig
	relays  map[string]*relay
	routers []*Router
	servers []*httptest.Server
	clients []*client.Client
}

// start starts a daemon for each name, all with the snapshot a.b, and two routers.
func start(t *testing.T, o apirig.Options, names ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, file: filepath.Join(t.TempDir(), "nodes.json"), rigs: map[string]*apirig.Rig{},
		relays: map[string]*relay{}}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(apirig.Token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		o.Agent, o.Node, o.Dir = apirig.SelfAgent, name, t.TempDir()
		for _, key := range []string{"tokens.key", "links.key"} { // equal on all nodes, so that sandboxes can move
			if err := os.WriteFile(filepath.Join(o.Dir, key), make([]byte, 32), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		rig := apirig.Start(t, o)
		if _, err := rig.Bake(t.Context(), rig.Parent); err != nil {
			t.Fatal(err)
		}
		c.rigs[name], c.relays[name] = rig, newRelay(t, rig.Server.Listener.Addr().String())
		c.entries = append(c.entries, entry{Name: name, URL: "http://" + c.relays[name].Addr().String(), TokenFile: token})
	}
	c.write()
	for range 2 {
		r := routerOf(t, c.file)
		server := httptest.NewServer(r)
		t.Cleanup(server.Close)
		cl, err := client.New(server.URL, apirig.Token, client.WithRetries(0))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cl.Close)
		c.routers, c.servers, c.clients = append(c.routers, r), append(c.servers, server), append(c.clients, cl)
	}
	return c
}

// write writes the file of nodes.
func (c *cluster) write() {
	c.t.Helper()
	text, err := json.Marshal(file{c.entries})
	if err == nil {
		err = os.WriteFile(c.file, text, 0o600)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// fresh waits until all routers know the present state.
func (c *cluster) fresh() {
	for _, r := range c.routers {
		r.fresh(c.t.Context())
	}
}

// routerOf returns a running router that has asked all nodes. First it calls each given function
// with the router, and then it starts the router.
func routerOf(t *testing.T, file string, set ...func(*Router)) *Router {
	t.Helper()
	r, err := New(Config{File: file, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range set {
		s(r)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	r.fresh(t.Context())
	return r
}

// fork forks one sandbox through a router, and returns its id.
func (c *cluster) fork(router int, req client.ForkRequest) string {
	c.t.Helper()
	if req.SnapshotTag+req.SourceID == "" {
		req.SnapshotTag = "a.b"
	}
	req.N = 1
	f, err := c.clients[router].Fork(c.t.Context(), req)
	if err != nil {
		c.t.Fatal(err)
	}
	return f.Sandboxes[0].ID
}

// nodeOf returns the name of the daemon that has a sandbox.
func (c *cluster) nodeOf(id string) string {
	c.t.Helper()
	found := ""
	for name, rig := range c.rigs {
		if _, err := rig.Sandbox(c.t.Context(), id); err == nil {
			found += name
		}
	}
	return found
}

// ids() returns the ids of all sandboxes that a client lists.
func ids(t *testing.T, cl *client.Client) (all []string) {
	t.Helper()
	list, err := cl.Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		all = append(all, s.ID)
	}
	return all
}

// get sends a request, and returns its answer and its body.
func get(t *testing.T, method, url, token, body string, header http.Header) (*http.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, stringReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, values := range header {
		req.Header[name] = values
	}
	if req.Host = header.Get("Host"); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}
