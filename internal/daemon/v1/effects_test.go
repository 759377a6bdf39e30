package v1_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
)

func TestHoldOverTheAPI(t *testing.T) {
	r := start(t, apirig.Options{Tokens: []auth.Token{{Name: "reader", Scope: auth.Read}}})
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	hold := &client.Hold{Hosts: []string{"API.example.com"}, Answer: "record"}
	f, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1, HoldEffects: hold})
	if err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	held := func(h *client.Hold) bool {
		return h != nil && len(h.Hosts) == 1 && h.Hosts[0] == "api.example.com" && h.Answer == "record"
	}
	if n, err := r.SetNetwork(t.Context(), id, client.Network{Mode: "none"}); err != nil || !held(n.HoldEffects) {
		t.Errorf("a policy without a hold: %+v, %v", n, err)
	}
	child, err := r.Fork(t.Context(), client.ForkRequest{SourceID: id, N: 1, Network: &client.Network{Mode: "public"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{id, child.Sandboxes[0].ID} {
		if e, err := r.Effects(t.Context(), id); err != nil || !held(e.Hold) || e.List == nil {
			t.Errorf("%+v, %v", e, err)
		}
	}
	reader, err := client.New(r.URL, r.Tokens["reader"])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Effects(t.Context(), id); !errors.Is(err, client.ErrScope) {
		t.Errorf("a token that may only read: %v", err)
	}
	e, err := r.ReleaseEffects(t.Context(), id)
	if err != nil || e.Hold != nil {
		t.Errorf("%+v, %v", e, err)
	}
	if n, err := r.Network(t.Context(), id); err != nil || n.HoldEffects != nil || n.Mode != "none" {
		t.Errorf("after the release: %+v, %v", n, err)
	}
	for _, wrong := range []client.Hold{{}, {Hosts: []string{"1.2.3.4"}}, {Hosts: []string{"a.b"}, Answer: "x"}} {
		_, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1, HoldEffects: &wrong})
		_, also := r.Try(t.Context(), id, client.TryRequest{N: 1, Args: []string{"true"}, HoldEffects: &wrong}, nil, nil)
		for _, err := range []error{err, also} {
			if err == nil || !strings.Contains(err.Error(), "hold_effects.") {
				t.Errorf("%+v: %v", wrong, err)
			}
		}
	}
	if _, err := r.Effects(t.Context(), "sb-missing"); !client.IsNotFound(err) {
		t.Errorf("effects of no sandbox: %v", err)
	}
}
