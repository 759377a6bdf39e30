// Package identity gives a guest an identity of its own: a VM generation ID, a host name, and fresh
// random numbers.
//
// A child is a copy of its parent, down to the state of its random number generators. It must not
// be used until its agent has confirmed its new identity. Packages eval and agent apply the
// identity in the guest; the caller decides when a guest gets one.
package identity

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// entropyBytes is the size of the seed for a guest's random number generators: 256 bits.
const entropyBytes = 32

// Guest is the agent that takes up an identity. Forked returns when the agent has done so, with what
// the agent has found in the memory of the guest's processes; nil if it did not look.
type Guest interface {
	Forked(context.Context, agentproto.Forked) (*agentproto.Unique, error)
}

// Give gives a guest its identity, and waits until its agent has confirmed. The agent's report of
// generators is nil if it did not look.
func Give(ctx context.Context, g Guest, hostname string, env map[string]string) (*agentproto.Unique, error) {
	entropy := make([]byte, entropyBytes)
	rand.Read(entropy)
	return g.Forked(ctx, agentproto.Forked{
		Entropy: entropy, RealtimeNanos: time.Now().UnixNano(), Hostname: hostname, Env: env,
	})
}

// NewGenerationID returns a VM generation ID that was never used before.
func NewGenerationID() (id [16]byte) {
	rand.Read(id[:])
	return id
}
