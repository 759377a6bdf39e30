package ledger

// usualEnv is how long the environment of a child may be that others learn from, in bytes. With 500
// KiB of it a guest writes two MiB more.
const usualEnv = 1 << 10

// WritesAsOthers reports whether a new child writes what other children of its snapshot write, too:
// it was given little of its own. Else one user could make the children of all others larger.
func (r *Record) WritesAsOthers() bool {
	size := 0
	for name, value := range r.Env {
		size += len(name) + len(value)
	}
	return size <= usualEnv && len(r.Network.Secrets) == 0
}
