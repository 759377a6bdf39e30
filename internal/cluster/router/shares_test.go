package router

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/gate"
)

// Neither a client nor an address can take all places, so slow readers do not lock other clients
// out.
func TestNoClientHasAllPlaces(t *testing.T) {
	request := func(ctx context.Context, address, token, key string) *http.Request {
		req := httptest.NewRequestWithContext(ctx, "GET", "/v1/sandboxes", nil)
		req.RemoteAddr = address + ":1"
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		return req
	}
	for name, c := range map[string]struct {
		address, token, key func(n int) string
		want                int
	}{
		"one token":   {numbered, fixed("t"), fixed(""), gate.Fair(maxLists)},
		"one address": {fixed("a"), numbered, fixed(""), gate.Fair(maxLists)},
		"no tokens":   {fixed("a"), fixed(""), fixed(""), gate.Fair(maxLists)},
		"one key":     {fixed("a"), fixed("t"), fixed("k"), 1},
		"two clients": {numbered, numbered, fixed("k"), maxLists},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := gate.New(maxLists)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for n := range 2 * maxLists {
				go wait(g, request(ctx, c.address(n), c.token(n), c.key(n)))
			}
			synctest.Wait()
			if taken, _ := g.Count(); taken != c.want {
				t.Errorf("%s: %d places are taken, want %d", name, taken, c.want)
			}
			if c.want == maxLists {
				return
			}
			leave, err := wait(g, request(t.Context(), "other", "other", "k"))
			if err != nil {
				t.Fatal(err)
			}
			leave()
		})
	}
}

func fixed(text string) func(int) string { return func(int) string { return text } }

func numbered(n int) string { return strings.Repeat("x", n+1) }

// Even if clients ask for unknown snapshots, the router makes a pause before it asks all nodes
// again.
func TestPauseBetweenQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Router{wake: make(chan struct{}, 1)}
		for _, want := range []time.Duration{pause, interval} {
			if want == pause {
				r.wake <- struct{}{}
			}
			begin := time.Now()
			if r.rest(t.Context()); time.Since(begin) != want {
				t.Errorf("the next round begins after %v, want %v", time.Since(begin), want)
			}
		}
	})
}

// Requests with one Idempotency-Key that arrive at the same time are executed once. Two routers choose
// the same node for the same key.
func TestConcurrentRepeats(t *testing.T) {
	c := start(t, apirig.Options{}, "a", "b", "c")
	for i := range 8 {
		of := creation{SnapshotTag: "a.b", key: numbered(i)}
		var names []string
		for _, r := range c.routers {
			n, _, err := r.best(&of, nil)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, n.Name)
		}
		if names[0] != names[1] {
			t.Errorf("key %d: the routers choose %v", i, names)
		}
	}
	var all sync.WaitGroup
	made := make([]string, 8)
	for i := range made {
		all.Go(func() {
			resp, body := get(t, "POST", c.servers[0].URL+"/v1/forks", apirig.Token, `{"snapshot_tag": "a.b"}`,
				http.Header{"Idempotency-Key": {"k"}})
			var f client.Forked
			if err := json.Unmarshal([]byte(body), &f); err != nil || len(f.Sandboxes) != 1 {
				t.Errorf("%s %s", resp.Status, body)
				return
			}
			made[i] = f.Sandboxes[0].ID
		})
	}
	all.Wait()
	if slices.Sort(made); made[0] != made[len(made)-1] || len(ids(t, c.clients[1])) != 1 {
		t.Errorf("the answers have the sandboxes %v", slices.Compact(made))
	}
	checkMetrics(t, c)
}

// checkMetrics checks the metrics of the first router of TestConcurrentRepeats.
func checkMetrics(t *testing.T, c *cluster) {
	t.Helper()
	c.relays["b"].set(true, false)
	c.fresh()
	get(t, "GET", c.servers[0].URL+"/v1/sandboxes/"+idOn("b"), apirig.Token, "", nil)
	w := httptest.NewRecorder()
	c.routers[0].Metrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	text := strings.Join(slices.DeleteFunc(strings.Split(w.Body.String(), "\n"), func(line string) bool {
		return !strings.HasPrefix(line, "forkd_router_")
	}), "\n")
	for _, want := range []string{`forkd_router_node_usable{node="a"} 1`, `forkd_router_node_usable{node="b"} 0`,
		`",snapshot="cold"} 1`, `",result="2xx"} `} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics lack %s:\n%s", want, text)
		}
	}
	lost := func(result string) bool { return strings.Contains(text, `{node="b",result="`+result+`"} 1`) }
	if !lost("failed") && !lost("unreachable") {
		t.Errorf("the metrics lack a failed request to node b:\n%s", text)
	}
	if strings.Count(text, "forkd_router_placements_total{") != 1 {
		t.Errorf("more than one node was chosen:\n%s", text)
	}
}

// Whatever the body of a request contains, it costs the router little memory. This matters because
// the router decodes the body before a daemon has checked the token.
func TestCostOfBodies(t *testing.T) {
	for text, want := range map[string]bool{`null`: false, `[]`: false, ` [ ] `: false, `[0]`: true, `{}`: false,
		`[ {"name": "a"} ]`: true} {
		var c creation
		err := json.Unmarshal([]byte(`{"n": 2, "volumes": `+text+`}`), &c)
		if err != nil || bool(c.Volumes) != want || c.N != 2 {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
	for _, part := range []string{"0,", "[],", "{},", `"",`} {
		body := []byte(`{"volumes": [` + strings.Repeat(part, face.MaxBody/len(part)-20) + `0]}`)
		var c creation
		n := testing.AllocsPerRun(1, func() {
			if err := json.Unmarshal(body, &c); err != nil {
				t.Fatal(err)
			}
		})
		if n > 100 {
			t.Errorf("%d elements %s: %.0f allocations", len(body)/len(part), part, n)
		}
	}
}
