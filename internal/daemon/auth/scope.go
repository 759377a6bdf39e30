package auth

import "fmt"

// Scope is a set of rights. Read, Run and Admin include all lower scopes except Pull. Only Admin includes Pull.
type Scope int

// Scopes. The zero Scope has no rights. Pull is the lowest scope, so a token with it fails every check for another
// scope.
const (
	Pull  Scope = iota + 1 // fetch whole snapshots, and nothing else
	Read                   // read lists, states and metrics, but nothing inside a sandbox
	Run                    // use sandboxes: fork, exec, files, ports, branch, kill
	Admin                  // everything: also bake from files of the host, and delete snapshots
)

// scopeNames returns the names of scopes in token files and options.
func scopeNames() []string { return []string{Pull: "pull", Read: "read", Run: "run", Admin: "admin"} }

func (s Scope) String() string {
	if s < Pull || s > Admin {
		return "none"
	}
	return scopeNames()[s]
}

// includes() reports whether s has all rights of the wanted scope.
func (s Scope) includes(want Scope) bool {
	if want == Pull {
		return s == Pull || s == Admin
	}
	return s >= want
}

// ParseScope reads a scope.
func ParseScope(text string) (Scope, error) {
	for s, name := range scopeNames() {
		if name == text && name != "" {
			return Scope(s), nil
		}
	}
	return 0, fmt.Errorf("scope %q: want pull, read, run or admin", text)
}
