package router

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
)

// With the parameter node, a list has only the members of this node, also if another node is lost.
func TestListOfOneNode(t *testing.T) {
	c := start(t, apirig.Options{}, "a", "b")
	on := map[string][]string{}
	for range 3 {
		id := c.fork(0, client.ForkRequest{})
		on[c.nodeOf(id)] = append(on[c.nodeOf(id)], id)
	}
	c.relays["b"].set(true, false)
	c.fresh()
	var got []string
	req := client.PageRequest{Node: "a", Limit: 1}
	for page := 0; page == 0 || req.Cursor != ""; page++ {
		list, next, err := c.clients[page%2].SandboxPage(t.Context(), req)
		if err != nil || page > 3 {
			t.Fatalf("page %d: %v", page, err)
		}
		for _, s := range list {
			got = append(got, s.ID)
		}
		req.Cursor = next
	}
	if !slices.Equal(got, on["a"]) {
		t.Errorf("node a has %v, want %v", got, on["a"])
	}
	for url, want := range map[string]string{c.servers[0].URL: "there is no such node", c.rigs["a"].URL: "unknown query"} {
		for _, name := range []string{"", "x"} {
			resp, body := get(t, "GET", url+"/v1/sandboxes?node="+name, apirig.Token, "", nil)
			if resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, want) {
				t.Errorf("node %q: %s %s", name, resp.Status, body)
			}
		}
	}
}

// The list of nodes says which nodes are cordoned or lost.
func TestListOfNodes(t *testing.T) {
	c := start(t, apirig.Options{}, "a", "b", "c")
	c.setCordoned("b", true)
	c.relays["c"].set(true, false)
	c.fresh()
	resp, body := get(t, "GET", c.servers[0].URL+"/v1/nodes", apirig.Token, "", nil)
	var all client.RouterNodes
	if err := json.Unmarshal([]byte(body), &all); err != nil || len(all.Nodes) != 3 {
		t.Fatalf("%s %s", resp.Status, body)
	}
	for i, n := range all.Nodes {
		if n.Name != string("abc"[i]) || n.Cordoned != (i == 1) || (n.Error != "") != (i == 2) || n.URL == "" ||
			(n.MemoryMiB > 0) != (i != 2) {
			t.Errorf("%+v", n)
		}
	}
	if resp, body := get(t, "GET", c.servers[0].URL+"/v1/nodes?x=1", apirig.Token, "", nil); resp.StatusCode !=
		http.StatusBadRequest {
		t.Errorf("with a parameter: %s %s", resp.Status, body)
	}
}
