package e2b_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
)

// An API key with the scope run cannot give a sandbox access to the host's network through E2B's
// API.
func TestOnlyAdminsOpenTheHostsNetwork(t *testing.T) {
	r := startWith(t, apirig.Options{Tokens: []auth.Token{{Name: "a", Scope: auth.Run}}})
	admin := r.key
	r.key = header{"X-API-Key": "e2b_" + r.Tokens["a"]}
	path := "/sandboxes/" + r.create(`{"templateID":"a.b"}`).ID + "/network"
	const private = `{"allowOut":["10.1.2.3"],"denyOut":["0.0.0.0/0"]}`
	for route, body := range map[string]string{
		"PUT " + path: private, "POST /sandboxes": `{"templateID":"a.b","network":` + private + `}`,
	} {
		method, path, _ := strings.Cut(route, " ")
		answer, text := r.send(method, path, r.key, body)
		if answer.StatusCode != http.StatusForbidden || !strings.Contains(text, "10.1.2.3 opens a closed range (private)") {
			t.Errorf("%s: %s %s", route, answer.Status, text)
		}
	}
	if answer, text := r.send("PUT", path, admin, private); answer.StatusCode != http.StatusNoContent {
		t.Errorf("the admin: %s %s", answer.Status, text)
	}
	// Copies of a sandbox keep the access that an admin has given, even if the sandbox is paused.
	at := strings.TrimSuffix(path, "/network")
	r.call("POST", at+"/pause", `{}`, 204, nil)
	r.call("POST", at+"/fork", `{"count":1,"timeout":60}`, 201, nil)
}

// A sandbox's ports are either open or closed to clients without a token. This is fixed at the
// creation of the sandbox. A request to change it is refused, not ignored.
func TestPublicTrafficIsForLife(t *testing.T) {
	r := start(t)
	for made, other := range map[string]string{"true": "false", "false": "true"} {
		path := "/sandboxes/" + r.create(`{"templateID":"a.b","network":{"allowPublicTraffic":`+made+`}}`).ID + "/network"
		if answer, text := r.send("PUT", path, r.key,
			`{"allowPublicTraffic":`+other+`}`); answer.StatusCode < 400 || !strings.Contains(text, "allowPublicTraffic") {
			t.Errorf("from %s to %s: %s %s", made, other, answer.Status, text)
		}
		r.call("PUT", path, `{"allowPublicTraffic":`+made+`}`, 204, nil)
	}
}

// If a request for a sandbox does not say which addresses the sandbox may connect to, the sandbox
// has the policy of its template. A sandbox always has the limits of its template.
func TestPolicyOfTheTemplate(t *testing.T) {
	r := start(t)
	made, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1,
		Network: &client.Network{Mode: "none", Limits: client.NetworkLimits{Connections: 5}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Branch(t.Context(), made.Sandboxes[0].ID, client.BranchRequest{Tag: "closed"}); err != nil {
		t.Fatal(err)
	}
	for options, mode := range map[string]string{
		``:              "none",
		`,"network":{}`: "none",
		`,"network":{"allowPublicTraffic":false}`:     "none",
		`,"network":{"dnsServers":["9.9.9.9"]}`:       "none",
		`,"network":{"denyOut":["9.9.9.9"]}`:          "public",
		`,"network":{},"allow_internet_access":true`:  "public",
		`,"network":{},"allow_internet_access":false`: "none",
	} {
		n, err := r.Network(t.Context(), r.create(`{"templateID":"closed"`+options+`}`).ID)
		if err != nil || n.Mode != mode || n.Limits.Connections != 5 {
			t.Errorf("%s: %+v, %v; want mode %s and the limits of the template", options, n, err, mode)
		}
	}
}
