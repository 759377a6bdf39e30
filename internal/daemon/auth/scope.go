package auth

import "fmt"

// Scope is what a client may do. Each includes those before it.
type Scope int

// Scopes. The zero Scope may do nothing.
const (
	Read  Scope = iota + 1 // see what there is: lists, states, figures; nothing that is in a sandbox
	Run                    // use sandboxes: fork, exec, files, ports, branches, ends
	Admin                  // all: bake from files of the host, remove snapshots
)

// scopeNames are the words of token files and options.
func scopeNames() []string { return []string{Read: "read", Run: "run", Admin: "admin"} }

func (s Scope) String() string {
	if s < Read || s > Admin {
		return "none"
	}
	return scopeNames()[s]
}

// ParseScope reads a scope.
func ParseScope(text string) (Scope, error) {
	for s, name := range scopeNames() {
		if name == text && name != "" {
			return Scope(s), nil
		}
	}
	return 0, fmt.Errorf("scope %q: want read, run or admin", text)
}
