package v1_test

import (
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
)

func TestNetworkPolicyOverTheAPI(t *testing.T) {
	r := start(t, apirig.Options{})
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	f, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1})
	if err != nil || f.Sandboxes[0].Network != "public" {
		t.Fatalf("%+v, %v", f, err)
	}
	f, err = r.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1, PerChildNetns: true,
		Network: &client.Network{Allow: []string{"PyPI.org"}, Limits: client.NetworkLimits{Connections: 7}}})
	if err != nil || f.Sandboxes[0].Network != "allow" {
		t.Fatalf("%+v, %v", f, err)
	}
	id := f.Sandboxes[0].ID
	n, err := r.Network(t.Context(), id)
	if err != nil || n.Mode != "allow" || !slices.Equal(n.Allow, []string{"pypi.org"}) || n.Limits.Connections != 7 {
		t.Errorf("%+v, %v", n, err)
	}
	n, err = r.SetNetwork(t.Context(), id, client.Network{Mode: "public", Deny: []string{"1.2.3.4"}})
	if err != nil || n.Mode != "public" || len(n.Allow) != 0 || n.Limits.Connections != 0 {
		t.Errorf("%+v, %v", n, err)
	}
	if s, err := r.Sandbox(t.Context(), id); err != nil || s.Network != "public" {
		t.Errorf("%+v, %v", s, err)
	}
	w, err := r.CreateWorkspace(t.Context(), client.WorkspaceRequest{Name: "w", SnapshotTag: r.Parent.Tag,
		Network: &client.Network{Mode: "none"}})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := r.Sandbox(t.Context(), w.LiveSandboxID); err != nil || s.Network != "none" {
		t.Errorf("%+v, %v", s, err)
	}
}

// A wrong policy is refused by the name of its field, wherever it is given.
func TestWrongNetworkPolicyNamesTheField(t *testing.T) {
	r := start(t, apirig.Options{})
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	f, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	wrong := &client.Network{Mode: "allow", Allow: []string{"a.b", "*"}}
	parent := r.Parent
	parent.Tag, parent.Network = "other", wrong
	for name, c := range map[string]struct {
		field string
		call  func() error
	}{
		"fork": {"network.allow[1]: ", func() error {
			_, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1, Network: wrong})
			return err
		}},
		"bake": {"network.allow[1]: ", func() error { _, err := r.Bake(t.Context(), parent); return err }},
		"workspace": {"network.allow[1]: ", func() error {
			_, err := r.CreateWorkspace(t.Context(), client.WorkspaceRequest{Name: "w", SnapshotTag: r.Parent.Tag, Network: wrong})
			return err
		}},
		"set": {"allow[1]: ", func() error { _, err := r.SetNetwork(t.Context(), id, *wrong); return err }},
		"no mode": {"mode: ", func() error {
			_, err := r.SetNetwork(t.Context(), id, client.Network{Deny: []string{"a.b"}})
			return err
		}},
	} {
		var refused *client.Error
		if err := c.call(); !errors.As(err, &refused) || refused.Status != http.StatusBadRequest ||
			len(refused.Message) < len(c.field) || refused.Message[:len(c.field)] != c.field {
			t.Errorf("%s: %v, want 400 and %q", name, err, c.field)
		}
	}
	if _, err := r.Network(t.Context(), "sb-missing"); !client.IsNotFound(err) {
		t.Errorf("network of no sandbox: %v", err)
	}
	if _, err := r.SetNetwork(t.Context(), "sb-missing", client.Network{Mode: "none"}); !client.IsNotFound(err) {
		t.Errorf("network of no sandbox: %v", err)
	}
}
