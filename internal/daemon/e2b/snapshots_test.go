package e2b_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// A snapshot of a paused sandbox can be used like any other, and the sandbox stays paused.
func TestSnapshotOfAPausedSandbox(t *testing.T) {
	r := start(t)
	b := r.create(`{"templateID":"a.b"}`)
	at := "/sandboxes/" + b.ID
	r.call("POST", at+"/pause", "", 204, nil)
	var made struct {
		ID string `json:"snapshotID"`
	}
	r.call("POST", at+"/snapshots", `{"name":"asleep"}`, 201, &made)
	var i box
	if r.call("GET", at, "", 200, &i); i.State != "paused" || made.ID != "asleep" {
		t.Errorf("the sandbox is %s, its snapshot %q", i.State, made.ID)
	}
	var list []struct {
		ID string `json:"snapshotID"`
	}
	if r.call("GET", "/snapshots?sandboxID="+b.ID, "", 200, &list); len(list) != 1 || list[0].ID != "asleep" {
		t.Errorf("listed: %+v", list)
	}
	r.call("DELETE", at, "", 204, nil)
	child := r.create(`{"templateID":"asleep"}`)
	r.call("DELETE", "/templates/asleep", "", 409, nil)
	r.call("DELETE", "/sandboxes/"+child.ID, "", 204, nil)
	r.call("DELETE", "/templates/asleep", "", 204, nil)
}

// A snapshot without memory can be made of a running sandbox. If a sandbox is forked from this
// snapshot, the sandbox boots.
func TestSnapshotWithoutMemory(t *testing.T) {
	r := start(t)
	b := r.create(`{"templateID":"a.b"}`)
	at := "/sandboxes/" + b.ID
	r.call("POST", at+"/snapshots", `{"name":"files","memory":false}`, 201, nil)
	r.call("POST", at+"/pause", "", 204, nil)
	r.call("POST", at+"/snapshots", `{"name":"asleep","memory":false}`, 400, nil)
	child := r.create(`{"templateID":"files"}`)
	r.call("DELETE", "/sandboxes/"+child.ID, "", 204, nil)
	r.call("DELETE", at, "", 204, nil)
	r.call("DELETE", "/templates/files", "", 204, nil)
}

// A repeated creation with the same key gets the first answer and makes no second sandbox.
func TestIdempotencyKey(t *testing.T) {
	r := start(t)
	create := func(path, key, body string, want int) string {
		t.Helper()
		resp, text := r.send("POST", path, apiKey.with("Idempotency-Key", key), body)
		if resp.StatusCode != want {
			t.Fatalf("%s: %s %s, want %d", path, resp.Status, text, want)
		}
		return text
	}
	first := create("/v2/sandboxes", "k1", `{"templateID":"a.b"}`, 201)
	if again := create("/v2/sandboxes", "k1", `{"templateID":"a.b"}`, 201); again != first {
		t.Errorf("again: %s, want %s", again, first)
	}
	if other := create("/v2/sandboxes", "k2", `{"templateID":"a.b"}`, 201); other == first {
		t.Error("another key got the same sandbox")
	}
	create("/v2/sandboxes", "k1", `{"templateID":"a.b","timeout":7}`, 422) // the key was used for another request
	var all []box
	r.call("GET", "/v2/sandboxes", "", 200, &all)
	var ids []string
	for _, b := range all {
		ids = append(ids, b.ID)
	}
	slices.Sort(ids)
	if len(slices.Compact(ids)) != 2 {
		t.Errorf("sandboxes: %q", ids)
	}
}

// Names of templates may be as long as E2B's. A name matches regardless of case if it matches only
// one template.
func TestNamesOfTemplates(t *testing.T) {
	r := start(t)
	b := r.create(`{"templateID":"A.B"}`) // finds a.b
	long := "Task__" + strings.Repeat("x", 122)
	r.call("POST", "/sandboxes/"+b.ID+"/snapshots", `{"name":"`+long+`"}`, 201, nil)
	var of struct {
		ID string `json:"templateID"`
	}
	if r.call("GET", "/templates/aliases/"+strings.ToLower(long), "", 200, &of); of.ID != long {
		t.Errorf("found %q", of.ID)
	}
	var list []box
	if r.call("GET", "/v2/sandboxes?template=A.b", "", 200, &list); len(list) != 1 {
		t.Errorf("listed: %+v", list)
	}
	r.call("POST", "/sandboxes/"+b.ID+"/snapshots", `{"name":"`+long+`y"}`, 400, nil)
	r.call("POST", "/sandboxes/"+b.ID+"/snapshots", `{"name":"`+strings.ToLower(long)+`"}`, 201, nil)
	// Two names differ only in case.
	if r.call("GET", "/templates/aliases/"+strings.ToUpper(long), "", 404, nil); of.ID != long {
		t.Errorf("found %q", of.ID)
	}
	r.call("GET", "/templates/aliases/"+long, "", 200, nil)
	resp, text := r.send("POST", "/v2/sandboxes", apiKey, `{"templateID":"team/a.b"}`)
	if resp.StatusCode != 400 || !strings.Contains(text, "remove") {
		t.Errorf("a name with a team: %s %s", resp.Status, text)
	}
}

// If the policy of a paused sandbox is changed, later snapshots and copies of the sandbox have the
// new policy.
func TestPausedSandboxPassesItsPolicyOn(t *testing.T) {
	r := start(t)
	b := r.create(`{"templateID":"a.b","timeout":300}`)
	at := "/sandboxes/" + b.ID
	r.call("POST", at+"/pause", `{}`, 204, nil)
	r.call("PUT", at+"/network", `{"denyOut":["0.0.0.0/0"]}`, 204, nil)
	type shown struct {
		Network json.RawMessage `json:"network"`
	}
	var own, child, copied shown
	r.call("GET", at, "", 200, &own)
	var forks []struct{ Sandbox box }
	r.call("POST", at+"/fork", `{"count":1,"timeout":60}`, 201, &forks)
	r.call("GET", "/sandboxes/"+forks[0].Sandbox.ID, "", 200, &child)
	r.call("POST", at+"/snapshots", `{"name":"asleep"}`, 201, nil)
	r.call("GET", "/sandboxes/"+r.create(`{"templateID":"asleep"}`).ID, "", 200, &copied)
	if !strings.Contains(string(own.Network), "0.0.0.0/0") {
		t.Fatalf("the paused sandbox: %s", own.Network)
	}
	if string(child.Network) != string(own.Network) {
		t.Errorf("its fork: %s, want %s", child.Network, own.Network)
	}
	if string(copied.Network) != string(own.Network) {
		t.Errorf("a child of its snapshot: %s, want %s", copied.Network, own.Network)
	}
}
