package sandbox

import (
	"context"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/netclient"
)

// trust tells the guest of v to trust forkd-net's CA, if the sandbox has secrets or a hold.
func (m *Manager) trust(ctx context.Context, v *liveVM, setting netclient.Setting) error {
	if m.cfg.Net == nil || !setting.EndsTLS() { // without a network, there is no CA
		return nil
	}
	certificate, err := m.cfg.Net.Authority()
	if err != nil {
		return err
	}
	return agentclient.New(v.guest.Dial).Trust(ctx, certificate)
}

// KeepSecret is called when a build gives a secret to a sandbox. From then on the sandbox's memory
// must not be saved to a disk, so suspensions and branches with memory are refused. The record does
// not contain this restriction, because a restarted daemon deletes the sandboxes of builds.
func (m *Manager) KeepSecret(ctx context.Context, id string) error {
	return m.With(ctx, id, func(h *Held) error { h.s.secret = true; return nil })
}
