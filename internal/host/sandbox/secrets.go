package sandbox

import "context"

// KeepSecret is called when a build gives a secret to a sandbox. From then on the sandbox's memory
// must not be saved to a disk, so suspensions and branches with memory are refused. The record does
// not contain this restriction, because a restarted daemon deletes the sandboxes of builds.
func (m *Manager) KeepSecret(ctx context.Context, id string) error {
	return m.With(ctx, id, func(h *Held) error { h.s.secret = true; return nil })
}
