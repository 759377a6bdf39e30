package ledger

// usualEnv is the largest environment, in bytes, with which a child counts as usual. With an
// environment of 500 KiB, a guest writes two MiB more than others.
const usualEnv = 1 << 10

// WritesAsOthers reports whether a new child writes the same pages as other children of its
// snapshot, because its fork gave it little data of its own. The pages that it writes first are
// later copied in advance for all children. Without this check, one user could make the children of
// all others larger.
func (r *Record) WritesAsOthers() bool {
	size := 0
	for name, value := range r.Env {
		size += len(name) + len(value)
	}
	return size <= usualEnv && len(r.Network.Secrets) == 0
}
