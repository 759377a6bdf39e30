package v1_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
)

// A token with the scope "run" cannot give a sandbox access to the host or the host's private
// networks, whatever it requests. An admin can give this access, and children of the sandbox
// inherit it.
func TestOnlyAdminsOpenTheHostsNetwork(t *testing.T) {
	r := start(t, apirig.Options{Tokens: []auth.Token{{Name: "a", Scope: auth.Run, Prefix: "team-a/"}}})
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	a, err := client.New(r.URL, r.Tokens["a"])
	if err != nil {
		t.Fatal(err)
	}
	mine, err := a.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := mine.Sandboxes[0].ID
	wide := client.Network{Mode: "allow", Allow: []string{"pypi.org", "169.254.169.254"}}
	fork := client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1, Network: &wide}
	another := fork
	another.SnapshotTag, another.SourceID = "", id
	workspace := client.WorkspaceRequest{Name: "team-a.w", SnapshotTag: r.Parent.Tag, Network: &wide}
	for name, c := range map[string]struct {
		field string
		ask   func() error
	}{
		"set":          {"allow[1]", func() error { return second(a.SetNetwork(t.Context(), id, wide)) }},
		"set the mode": {"mode", func() error { return second(a.SetNetwork(t.Context(), id, client.Network{Mode: "open"})) }},
		"fork":         {"network.allow[1]", func() error { return second(a.Fork(t.Context(), fork)) }},
		"fork another": {"network.allow[1]", func() error { return second(a.Fork(t.Context(), another)) }},
		"workspace":    {"network.allow[1]", func() error { return second(a.CreateWorkspace(t.Context(), workspace)) }},
	} {
		err := c.ask()
		e, ok := errors.AsType[*client.Error](err)
		if !ok || e.Status != http.StatusForbidden || e.Code != "scope" || e.Field != c.field ||
			!strings.Contains(e.Message, "--run-may-open-private") {
			t.Errorf("%s: %v, want 403 for the field %s", name, err, c.field)
		}
	}
	if n, err := a.Network(t.Context(), id); err != nil || n.Mode != "public" || len(n.Allow) != 0 {
		t.Errorf("after all was refused: %+v, %v", n, err)
	}

	if _, err := r.SetNetwork(t.Context(), id, client.Network{Mode: "allow", Allow: []string{"10.0.0.0/8"}}); err != nil {
		t.Fatalf("the admin: %v", err)
	}
	less := client.Network{Mode: "allow", Allow: []string{"10.1.2.3:5432", "pypi.org"}}
	another.Network = &less
	child, err := a.Fork(t.Context(), another)
	if err != nil {
		t.Fatalf("less than its source has: %v", err)
	}
	if _, err := a.SetNetwork(t.Context(), child.Sandboxes[0].ID, wide); err == nil {
		t.Error("more than it has is set")
	}
}
