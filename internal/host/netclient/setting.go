package netclient

import (
	"fmt"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// Setting is where a sandbox may connect to, and how much of the host's network it may take. It is
// a value: whoever changes one makes a new one.
type Setting struct {
	Policy  netproto.Policy   `json:"policy"`
	Limits  netproto.Limits   `json:"limits,omitzero"`
	Secrets []netproto.Secret `json:"-"` // never in a record or a snapshot: package sandbox keeps them apart
}

// Default is the setting of a sandbox of which nobody has said otherwise.
func Default() Setting { return Setting{Policy: netproto.Public()} }

// Isolated is the setting of what is to reach nobody.
func Isolated() Setting { return Setting{Policy: netproto.Policy{Mode: netproto.ModeNone}} }

// FromSnapshot returns the setting that forks of a snapshot are given.
func FromSnapshot(n *snapshot.Network) (Setting, error) {
	if n == nil {
		return Default(), nil
	}
	policy, err := netproto.ParsePolicy(n.Mode, n.Allow, n.Deny)
	if err != nil {
		return Setting{}, fmt.Errorf("the network policy in the snapshot: %w", err)
	}
	policy.AllowECH = n.AllowECH
	return Setting{Policy: policy, Limits: netproto.Limits{BytesPerSecond: n.BytesPerSecond,
		PacketsPerSecond: n.PacketsPerSecond, Connections: n.Connections}}, nil
}

// ForSnapshot is s as a snapshot keeps it: without secrets, which belong to one sandbox. Whoever
// can fork a snapshot, or reads its files, gets none.
func (s Setting) ForSnapshot() *snapshot.Network {
	return &snapshot.Network{Mode: s.Policy.Mode.String(), Allow: netproto.Texts(s.Policy.Allow),
		Deny: netproto.Texts(s.Policy.Deny), AllowECH: s.Policy.AllowECH, BytesPerSecond: s.Limits.BytesPerSecond,
		PacketsPerSecond: s.Limits.PacketsPerSecond, Connections: s.Limits.Connections}
}
