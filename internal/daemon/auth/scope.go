package auth

import "fmt"

// Scope is a set of rights. Each scope includes all lower scopes.
type Scope int

// Scopes. The zero Scope has no rights.
const (
	Read  Scope = iota + 1 // read lists, states and metrics, but nothing inside a sandbox
	Run                    // use sandboxes: fork, exec, files, ports, branch, kill
	Admin                  // everything: also bake from files of the host, and delete snapshots
)

// scopeNames returns the names of scopes in token files and options.
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
