// Package identity gives a guest an identity of its own. An identity consists of a VM generation
// ID, a host name, and fresh random numbers.
//
// A child is a copy of its parent, including the state of its random number generators. So no
// client may use the child until its agent has confirmed a new identity. In the guest, packages
// eval and agent apply the identity. The caller decides when a guest gets an identity.
package identity

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// entropyBytes is the size of the seed for a guest's random number generators: 256 bits.
const entropyBytes = 32

// Guest is the agent in a guest. Forked asks the agent to change the guest's identity, and returns
// when the agent has changed it. The result lists the random number generators that the agent has
// found in the guest's processes. The result is nil if the agent did not search.
type Guest interface {
	Forked(context.Context, agentproto.Forked) (*agentproto.Unique, error)
}

// Give gives a guest a new identity, and waits until its agent has confirmed. It returns the result
// of Guest.Forked.
func Give(ctx context.Context, g Guest, hostname string, env map[string]string) (*agentproto.Unique, error) {
	entropy := make([]byte, entropyBytes)
	rand.Read(entropy)
	return g.Forked(ctx, agentproto.Forked{
		Entropy: entropy, RealtimeNanos: time.Now().UnixNano(), Hostname: hostname, Env: env,
	})
}

// NewGenerationID returns a new random VM generation ID.
func NewGenerationID() (id [16]byte) {
	rand.Read(id[:])
	return id
}
