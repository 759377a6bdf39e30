package tenancy

import (
	"errors"
	"testing"

	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/host/owner"
)

// Only a principal without a prefix may unpack or pull a snapshot from another host, because the
// new snapshot can share files with any other snapshot.
func TestMayUnpack(t *testing.T) {
	h := newHost(t)
	a := newPart(t, h, "a")
	var prefix *owner.PrefixError
	for what, err := range map[string]error{
		"MayUnpack": a.view.MayUnpack(nil, ""),
		"Unpack":    func() error { _, err := a.view.Unpack(t.Context(), nil, "a.x", nil, nil); return err }(),
		"Pull":      func() error { _, err := a.view.Pull(t.Context(), nil, "a.x", hub.Remote{}, nil); return err }(),
		"PullLazily": func() error {
			_, err := a.view.PullLazily(t.Context(), nil, "a.x", hub.Remote{}, nil)
			return err
		}(),
		"Copy": func() error {
			_, err := a.view.Copy(t.Context(), nil, hub.Remote{}, hub.Remote{}, nil)
			return err
		}(),
		"Sign":   func() error { _, err := a.view.Sign(t.Context(), nil, hub.Remote{}, nil); return err }(),
		"Verify": func() error { _, _, err := a.view.Verify(t.Context(), nil, hub.Remote{}, nil); return err }(),
		"Find":   func() error { _, err := a.view.Find(t.Context(), nil, hub.Remote{}); return err }(),
	} {
		if !errors.As(err, &prefix) {
			t.Errorf("%s of a team: %v", what, err)
		}
	}
	for what, v := range map[string]*View{"nobody": h.For(owner.Owner{}), "one sandbox": h.Permitted(a.sandbox)} {
		if err := v.MayUnpack(nil, ""); !isMissing(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := h.For(owner.Owner{Name: "token:all"}).MayUnpack(nil, ""); err != nil {
		t.Error(err)
	}
}
