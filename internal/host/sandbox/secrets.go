package sandbox

import (
	"context"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/netclient"
)

// trust makes the guest of v trust forkd-net's certificate authority, if the sandbox has secrets.
func (m *Manager) trust(ctx context.Context, v *liveVM, setting netclient.Setting) error {
	if len(setting.Secrets) == 0 {
		return nil
	}
	certificate, err := m.cfg.Net.Authority()
	if err != nil {
		return err
	}
	return agentclient.New(v.guest.Dial).Trust(ctx, certificate)
}

// KeepSecret keeps the memory of a sandbox off the disk from now on, because a build gives it a
// secret: suspensions and branches with memory are refused. No record says so, because the next
// daemon ends the sandboxes of builds.
func (m *Manager) KeepSecret(ctx context.Context, id string) error {
	return m.With(ctx, id, func(h *Held) error {
		h.s.secret = true
		return nil
	})
}
