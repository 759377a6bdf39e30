package vmpool

import (
	"strings"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// IDPrefix begins every id, as in forkd 0.5. A shell has its id before anybody asks for a sandbox,
// so ids are made here.
const IDPrefix = "sb-"

func newID() string { return IDPrefix + snapshot.NewID() }

// IsID reports whether id can be one of a shell, and so of a sandbox.
func IsID(id string) bool {
	rest, ok := strings.CutPrefix(id, IDPrefix)
	return ok && snapshot.CheckID(rest) == nil
}
