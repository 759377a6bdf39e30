package vmpool

import (
	"strings"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// IDPrefix is the prefix of every id, as in forkd 0.5. A shell has its id before a client requests
// a sandbox, so ids are created here.
const IDPrefix = "sb-"

func newID() string { return IDPrefix + snapshot.NewID() }

// IsID reports whether id is a well-formed id of a shell, and so of a sandbox.
func IsID(id string) bool {
	rest, ok := strings.CutPrefix(id, IDPrefix)
	return ok && snapshot.CheckID(rest) == nil
}
