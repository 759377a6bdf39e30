// Package identity gives a guest an identity of its own: a VM generation ID, a host name, and fresh
// random numbers.
//
// A child is a copy of its parent, down to the state of its random number generators. Until its
// agent has confirmed that it has taken up what it is given here, nobody may use it. What the agent
// does with it is package eval's and agent's; when a guest is given an identity is decided by who
// calls.
package identity

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// entropyBytes is what a guest's random number generators are seeded with: 256 bits.
const entropyBytes = 32

// Guest is the agent that takes up an identity. It returns when it has, with what it found in the
// memory of the guest's processes; nil if it has not looked.
type Guest interface {
	Forked(context.Context, agentproto.Forked) (*agentproto.Unique, error)
}

// Give tells a guest who it is, and waits until its agent has confirmed. The agent's report of
// generators is nil if it has not looked.
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
