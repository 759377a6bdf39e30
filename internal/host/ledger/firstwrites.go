package ledger

// usualEnv is the largest environment, in bytes, of a child whose first writes are representative.
// With an environment of 500 KiB a guest writes two MiB more.
const usualEnv = 1 << 10

// WritesAsOthers reports whether a new child writes the same pages as other children of its
// snapshot, because it was given little of its own. Otherwise one user could enlarge the children
// of all others.
func (r *Record) WritesAsOthers() bool {
	size := 0
	for name, value := range r.Env {
		size += len(name) + len(value)
	}
	return size <= usualEnv && len(r.Network.Secrets) == 0
}
