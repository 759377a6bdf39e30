package ledger

// usualEnv is the largest environment, in bytes, of a child that counts as usual. With an
// environment of 500 KiB, a guest writes two MiB more than other guests.
const usualEnv = 1 << 10

// WritesAsOthers reports whether a new child writes the same pages as other children of its
// snapshot. A child does so if its fork gave it little data of its own. The pages that such a child
// writes first are copied in advance for later children. If children with much data of their own
// also determined these pages, one user could make the children of all other users larger.
func (r *Record) WritesAsOthers() bool {
	size := 0
	for name, value := range r.Env {
		size += len(name) + len(value)
	}
	return size <= usualEnv && !r.Network.EndsTLS()
}
