package netclient

import (
	"context"
	"fmt"
	"slices"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/hostroute"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// Setting says where a sandbox may connect to, and bounds its use of the host's network. Code that
// has a Setting must not change its slices in place.
type Setting struct {
	Policy  netproto.Policy
	Limits  netproto.Limits
	Secrets []netproto.Secret // records and snapshots do not contain them; package ledger stores them separately
	Hold    netproto.Hold     // requests that are held; only a release removes it, see sandbox.Manager.ReleaseEffects
}

// EndsTLS reports whether forkd-net acts as a server towards the guest. If so, forkd-net needs the
// CA, and the guest must trust the CA.
func (s *Setting) EndsTLS() bool { return len(s.Secrets) > 0 || s.Hold.On() }

// MayOpen returns an *owner.ClosedError if the requested setting opens closed networks that the
// present policy does not open, and the client of ctx is not allowed to open them. If all is true,
// every client is allowed to open them. Closed networks need protection because forkd-net connects
// from the host's own network, where servers on loopback and private addresses trust the host. In
// errors, the names of fields have the given prefix.
func MayOpen(ctx context.Context, all bool, prefix string, asked *Setting, present netproto.Policy) error {
	o := owner.Of(ctx)
	if asked == nil || o.Admin || all {
		return nil
	}
	if wide := asked.Policy.Widens(&present, hostroute.IsLocal); wide != nil {
		return &owner.ClosedError{Field: prefix + wide.Field, Who: o.Name, Reason: wide.Reason}
	}
	return nil
}

// Default is the network setting of a sandbox for which none was given.
func Default() Setting { return Setting{Policy: netproto.Public()} }

// Isolated returns the setting of a VM that may not connect to anything.
func Isolated() Setting { return Setting{Policy: netproto.Policy{Mode: netproto.ModeNone}} }

// ForChildren returns the network setting of children: the setting in the request or, if the
// request has none, the setting of their snapshot. The hold of their snapshot applies to them even
// if the request has a setting or a hold for other hosts, because only a release ends a hold. The
// request's hold adds hosts, and its answer replaces the answer of the snapshot's hold. If present
// is not nil, it replaces the setting of the snapshot: it is the setting of a suspended sandbox
// that is being forked, and has changed since the snapshot.
func ForChildren(asked *Setting, hold netproto.Hold, present *Setting, of *snapshot.Network) (Setting, error) {
	inherited, err := FromSnapshot(of)
	if present != nil {
		inherited, err = *present, nil
	}
	switch {
	case err != nil && (asked == nil || of.Hold != nil):
		return Setting{}, err
	case asked != nil:
		held := inherited.Hold
		inherited = *asked
		inherited.Hold = held
	}
	if hold.On() {
		for _, host := range inherited.Hold.Hosts {
			if !slices.Contains(hold.Hosts, host) {
				hold.Hosts = append(slices.Clip(hold.Hosts), host)
			}
		}
		if len(hold.Hosts) > netproto.MaxHeldHosts {
			return Setting{}, invalid.Errorf("hold_effects.hosts", "%d, with those that the snapshot holds: want at most %d",
				len(hold.Hosts), netproto.MaxHeldHosts)
		}
		inherited.Hold = hold
	}
	return inherited, nil
}

// FromSnapshot returns the setting for forks of a snapshot with the network setting n.
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

// FromText returns the setting for a policy that is stored as text. A policy without a mode is an
// error. Errors are *netproto.FieldError.
func FromText(n *snapshot.Network) (Setting, error) {
	if n.Mode == "" {
		return Setting{}, &netproto.FieldError{Field: "mode", Reason: "empty: use none, public, allow or open"}
	}
	policy, err := netproto.ParsePolicy(n.Mode, n.Allow, n.Deny)
	if err != nil {
		return Setting{}, err
	}
	policy.AllowECH = n.AllowECH
	var hold netproto.Hold
	if n.Hold != nil {
		if hold, err = netproto.ParseHold(n.Hold.Hosts, n.Hold.Answer); err != nil {
			return Setting{}, err
		}
	}
	return Setting{Hold: hold, Policy: policy, Limits: netproto.Limits{BytesPerSecond: n.BytesPerSecond,
		PacketsPerSecond: n.PacketsPerSecond, Connections: n.Connections}}, nil
}

// ForSnapshot returns s in the form for snapshots and records. It omits the secrets, which belong
// to one sandbox and must not get into a snapshot or its forks.
func (s Setting) ForSnapshot() *snapshot.Network {
	var hold *snapshot.Hold
	if s.Hold.On() {
		hold = &snapshot.Hold{Hosts: netproto.Texts(s.Hold.Hosts), Answer: s.Hold.Answer.String()}
	}
	return &snapshot.Network{Hold: hold, Mode: s.Policy.Mode.String(), Allow: netproto.Texts(s.Policy.Allow),
		Deny: netproto.Texts(s.Policy.Deny), AllowECH: s.Policy.AllowECH, BytesPerSecond: s.Limits.BytesPerSecond,
		PacketsPerSecond: s.Limits.PacketsPerSecond, Connections: s.Limits.Connections}
}
