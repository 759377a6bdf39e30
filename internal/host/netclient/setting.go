package netclient

import (
	"fmt"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// Setting says where a sandbox may connect to, and bounds its use of the host's network. It is a
// value and never changed in place.
type Setting struct {
	Policy  netproto.Policy
	Limits  netproto.Limits
	Secrets []netproto.Secret // never in a record or a snapshot: package sandbox stores them separately
}

// Default is the network setting of a sandbox for which none was given.
func Default() Setting { return Setting{Policy: netproto.Public()} }

// Isolated is the setting for a VM without access to any network.
func Isolated() Setting { return Setting{Policy: netproto.Policy{Mode: netproto.ModeNone}} }

// FromSnapshot returns the setting for forks of a snapshot.
func FromSnapshot(n *snapshot.Network) (Setting, error) {
	if n == nil {
		return Default(), nil
	}
	s, err := FromText(n)
	if err != nil {
		return Setting{}, fmt.Errorf("the network policy in the snapshot: %w", err)
	}
	return s, nil
}

// FromText returns the setting for a policy stored as text. A policy without a mode is invalid.
// Errors are *netproto.FieldError.
func FromText(n *snapshot.Network) (Setting, error) {
	if n.Mode == "" {
		return Setting{}, &netproto.FieldError{Field: "mode", Reason: "empty: use none, public, allow or open"}
	}
	policy, err := netproto.ParsePolicy(n.Mode, n.Allow, n.Deny)
	if err != nil {
		return Setting{}, err
	}
	policy.AllowECH = n.AllowECH
	return Setting{Policy: policy, Limits: netproto.Limits{BytesPerSecond: n.BytesPerSecond,
		PacketsPerSecond: n.PacketsPerSecond, Connections: n.Connections}}, nil
}

// ForSnapshot returns the form of s for snapshots and records: without secrets, which belong to one
// sandbox. A snapshot's files, and its forks, have none.
func (s Setting) ForSnapshot() *snapshot.Network {
	return &snapshot.Network{Mode: s.Policy.Mode.String(), Allow: netproto.Texts(s.Policy.Allow),
		Deny: netproto.Texts(s.Policy.Deny), AllowECH: s.Policy.AllowECH, BytesPerSecond: s.Limits.BytesPerSecond,
		PacketsPerSecond: s.Limits.PacketsPerSecond, Connections: s.Limits.Connections}
}
