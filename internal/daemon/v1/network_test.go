package v1_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
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
	n, err = r.SetNetwork(t.Context(), id, client.Network{Mode: "public", Deny: []string{"1.2.3.4"}, AllowECH: true})
	if err != nil || n.Mode != "public" || !n.AllowECH || len(n.Allow) != 0 || n.Limits.Connections != 0 {
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

// Every route refuses an invalid policy, and the error message begins with the name of the invalid
// field.
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
			_, err := r.CreateWorkspace(t.Context(), client.WorkspaceRequest{Name: "w", SnapshotTag: r.Parent.Tag,
				Network: wrong})
			return err
		}},
		"set": {"allow[1]: ", func() error { _, err := r.SetNetwork(t.Context(), id, *wrong); return err }},
		"connections": {"limits.connections: ", func() error {
			_, err := r.SetNetwork(t.Context(), id, client.Network{Mode: "public",
				Limits: client.NetworkLimits{Connections: 4097}})
			return err
		}},
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

// The API accepts the value of a secret, but never returns it in an answer or an error.
func TestSecretsOverTheAPI(t *testing.T) {
	r := start(t, apirig.Options{})
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	f, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	if _, err := r.Pause(t.Context(), id); err != nil { // the guest gets the policy when it is resumed
		t.Fatal(err)
	}
	with := func(secrets ...client.NetworkSecret) client.Network {
		return client.Network{Mode: "public", Secrets: secrets}
	}
	good := client.NetworkSecret{Host: "API.example.com", Header: "Authorization", Value: "s3cr3t"}
	for _, s := range []client.NetworkSecret{good, {Host: "api.example.com", Header: "authorization"}} {
		set, err := r.SetNetwork(t.Context(), id, with(s))
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.Network(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []client.SandboxNetwork{set, got} {
			if len(n.Secrets) != 1 || n.Secrets[0] != (client.NetworkSecret{Host: "api.example.com", Header: s.Header}) {
				t.Errorf("%+v", n.Secrets)
			}
		}
	}
	wrong := func(s client.NetworkSecret, change func(*client.NetworkSecret)) client.NetworkSecret {
		change(&s)
		return s
	}
	for field, n := range map[string]client.Network{
		"secrets[0].host: ":   with(wrong(good, func(s *client.NetworkSecret) { s.Host = "*.example.com" })),
		"secrets[1].header: ": with(good, wrong(good, func(s *client.NetworkSecret) { s.Header = "Host" })),
		"secrets[0].value: ":  with(wrong(good, func(s *client.NetworkSecret) { s.Value += "\n" })),
		"secrets[1]: ":        with(good, good),
		"secrets: ":           with(make([]client.NetworkSecret, 17)...),
		"mode: ":              {Secrets: []client.NetworkSecret{good}},
	} {
		if field == "secrets: " {
			for i := range n.Secrets {
				n.Secrets[i] = wrong(good, func(s *client.NetworkSecret) { s.Header = fmt.Sprint("X-", i) })
			}
		}
		_, err := r.SetNetwork(t.Context(), id, n)
		var refused *client.Error
		if !errors.As(err, &refused) || refused.Status != http.StatusBadRequest ||
			!strings.HasPrefix(refused.Message, field) ||
			strings.Contains(refused.Message, "s3cr3t") {
			t.Errorf("%v, want 400 and %q without the value", err, field)
		}
	}
	parent := r.Parent
	parent.Tag, parent.Network = "other", new(with(good))
	if _, err := r.Bake(t.Context(), parent); err == nil || !strings.Contains(err.Error(), "network.secrets: ") {
		t.Errorf("a snapshot with a secret: %v", err)
	}
	if _, err := r.SetNetwork(t.Context(), id, with()); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Network(t.Context(), id); err != nil || len(n.Secrets) != 0 {
		t.Errorf("%+v, %v", n, err)
	}
}
