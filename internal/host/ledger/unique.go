package ledger

import (
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// AdmitUnique records what an agent has found. It returns an error if, after such findings, clients
// may not use the sandbox.
func (r *Record) AdmitUnique(found *agentproto.Unique) error {
	r.Unique = found
	return unique.Admit(r.ID, r.Strict, found)
}
