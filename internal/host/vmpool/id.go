package vmpool

import (
	"cmp"
	"strings"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// IDPrefix is the prefix of every id, as in forkd 0.5. This package creates ids, because a shell
// gets its id before a client requests a sandbox.
const IDPrefix = "sb-"

func newID() string { return IDPrefix + snapshot.NewID() }

// IsID reports whether id has the form of a shell's id. A shell's id becomes the id of the sandbox.
func IsID(id string) bool {
	rest, ok := strings.CutPrefix(id, IDPrefix)
	return ok && snapshot.CheckID(rest) == nil
}

// Hostname returns the host name of the sandbox with the given id. An empty prefix stands for "sb".
func Hostname(prefix, id string) string {
	return cmp.Or(prefix, "sb") + "-" + strings.TrimPrefix(id, IDPrefix)[:6]
}
