package stack

import (
	"slices"

	"github.com/forkd/forkd/internal/net/effect"
	"github.com/forkd/forkd/internal/net/policy"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// heldHost is the reason for refusing a flow that the policy permits, but that could reach a held
// host without forkd-net reading its requests.
const heldHost = "held-host"

// heldRequests is the reason for refusing a connection to a held host if all requests of the
// connection were held.
const heldRequests = "held"

// setHoldLocked replaces the hold, and the policy for flows whose requests cannot be held. It must be
// called after each change of the policy.
func (s *Stack) setHoldLocked(hold netproto.Hold) {
	s.hold = hold
	s.around = s.policy
	s.around.Deny = slices.Concat(hold.Hosts, s.policy.Deny)
	s.effects.Set(hold)
}

// holdsLocked reports whether the server that a flow names is held.
func (s *Stack) holdsLocked(f *flow) bool {
	return isWeb(f) && f.Peeked && slices.ContainsFunc(s.hold.Hosts, func(r netproto.Rule) bool {
		return policy.Match(&r, f.Server)
	})
}

func isWeb(f *flow) bool {
	return f.Protocol == policy.TCP && (f.To.Port() == httpPort || f.To.Port() == httpsPort)
}

// verdictLocked decides about a flow by the policy and the hold. A flow to a held host passes only
// if it is HTTP or HTTPS at the usual port, because only then can this process read its requests. For
// all other flows, the policy denies the held hosts. This covers other ports and protocols, servers
// that share an address with a held host, and first bytes that could name a held host.
func (s *Stack) verdictLocked(f *flow) (policy.Verdict, policy.Reason) {
	verdict, reason := policy.Decide(&s.policy, &f.Flow)
	switch {
	case !s.hold.On() || verdict == policy.Refuse || s.holdsLocked(f):
		return verdict, reason
	case isWeb(f) && !f.Peeked:
		return policy.Peek, reason
	}
	if verdict, _ := policy.Decide(&s.around, &f.Flow); verdict == policy.Refuse {
		return verdict, heldHost
	}
	return verdict, reason
}

// Effects returns the requests that were held since the stack was made.
func (s *Stack) Effects() netproto.Effects { return s.effects.Effects() }

// newEffects returns the list of held requests. If all sandboxes together use half of the room for
// such lists, the list of one sandbox is limited to fewEffectBytes.
func (s *Stack) newEffects(hold netproto.Hold) *effect.List {
	room := &s.host.effects
	return effect.New(hold, func(n, own int64) bool { return room.takeFor(n, int(own), fewEffectBytes) }, room.give)
}
