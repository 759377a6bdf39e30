package vmpool

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// IDPrefix is the prefix of every id, as in forkd 0.5. This package creates ids, because a shell
// gets its id before a client requests a sandbox.
const IDPrefix = "sb-"

func newID(n snapshot.Node) string { return IDPrefix + n.NewID() }

// IsID reports whether id has the form of a shell's id. A shell's id becomes the id of the sandbox.
func IsID(id string) bool {
	rest, ok := strings.CutPrefix(id, IDPrefix)
	return ok && snapshot.CheckID(rest) == nil
}

// NodeOf returns the node that the id of a sandbox names; see snapshot.Node.
func NodeOf(id string) (snapshot.Node, error) {
	rest, ok := strings.CutPrefix(id, IDPrefix)
	if !ok {
		return snapshot.Node{}, fmt.Errorf("id %.100q: want one that begins with %s", id, IDPrefix)
	}
	return snapshot.NodeOfID(rest)
}

// Hostname returns the host name of the sandbox with the given id. An empty prefix stands for "sb".
func Hostname(prefix, id string) string {
	return cmp.Or(prefix, "sb") + "-" + strings.TrimPrefix(id, IDPrefix)[:6]
}
