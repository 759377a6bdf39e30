package sandbox

import (
	"context"
	"time"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/debt"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// tellTimeout is how long a guest may take to act on a message. If the VM is paused, the message is
// sent again when the VM runs.
const tellTimeout = 10 * time.Second

// moved returns a function that is called when the VM v gets another network stack. That stack does
// not know the guest's connections. Without a message, the guest would notice the change only when
// it sends data, so the function tells the guest.
func (m *Manager) moved(id string, v *liveVM) func() {
	return func() {
		if m.reset(id, v) != nil {
			v.debts.Owe(debt.Reset, func() { _ = m.reset(id, v) })
		}
	}
}

// reset tells the guest to close its connections, which no longer exist in forkd-net.
func (m *Manager) reset(id string, v *liveVM) error {
	ctx, cancel := context.WithTimeout(context.Background(), tellTimeout)
	defer cancel()
	err := agentclient.New(v.guest.Dial).ResetConnections(ctx)
	if err != nil {
		m.cfg.Log.Info("connections of a sandbox end only when it runs or uses them", "sandbox", id, "error", err)
	}
	return err
}

// join connects the VM v to the network according to r. If the daemon has no network, the link is
// nil. Otherwise the caller must restore the VM with a network, and then call the link's method
// Ready.
func (m *Manager) join(v *liveVM, r *ledger.Record) (*netclient.Link, error) {
	return m.cfg.Net.Join(r.ID, r.Network, v.vmm, m.moved(r.ID, v))
}

// SetNetwork replaces policy, limits and secrets of a sandbox in any state. When it returns, the
// new setting is in force. SetNetwork resets connections that the new policy denies, and
// connections whose secrets change. A secret without a value keeps its present value. A setting
// without a hold keeps the present hold. Later branches inherit policy, limits and hold. A rollback
// changes no setting. If the policy opens networks that the client may not open, the error is an
// *owner.ClosedError.
func (m *Manager) SetNetwork(ctx context.Context, id string, setting netclient.Setting) (Info, error) {
	return m.change(ctx, id, func(h *Held) error { return h.SetNetwork(ctx, setting) })
}

// SetNetwork is like Manager.SetNetwork.
func (h *Held) SetNetwork(ctx context.Context, setting netclient.Setting) error {
	if !setting.Hold.On() {
		setting.Hold = h.s.Info().Network.Hold
	}
	return h.m.setNetwork(ctx, h.s, setting)
}

// ReleaseEffects ends the hold of a sandbox in any state. Requests that are waiting then go to
// their servers.
func (m *Manager) ReleaseEffects(ctx context.Context, id string) (Info, error) {
	return m.change(ctx, id, func(h *Held) error {
		setting := h.s.Info().Network
		setting.Hold = netproto.Hold{}
		return m.setNetwork(ctx, h.s, setting)
	})
}

func (m *Manager) setNetwork(ctx context.Context, s *Sandbox, setting netclient.Setting) (err error) {
	if err := netclient.MayOpen(ctx, m.cfg.OpenPrivate, "", &setting, s.Info().Network.Policy); err != nil {
		return err
	}
	if setting.Secrets, err = netclient.FillSecrets("", setting.Secrets, s.Info().Network.Secrets); err != nil {
		return err
	}
	// Even if a guest has filled the disk, an operator must be able to close the network of another
	// guest.
	err = m.cfg.Store.Essential(func() error {
		if err := ledger.WriteSecrets(s.data, setting.Secrets); err != nil {
			return err
		}
		return s.updateAll(func(r *ledger.Record) { r.Network = setting })
	})
	if err != nil {
		return err
	}
	if err := s.link().Set(ctx, setting); err != nil {
		return err
	}
	return m.tellTrust(ctx, s, setting)
}

// tellTrust tells the guest to trust the CA that forkd-net uses for hosts of secrets. The sandbox
// may be in any state. A sandbox without a VM gets the message when it has a VM again.
func (m *Manager) tellTrust(ctx context.Context, s *Sandbox, setting netclient.Setting) error {
	v, state := s.live, s.Info().State
	tell := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, tellTimeout)
		defer cancel()
		return m.cfg.Net.Trust(ctx, setting, v.guest.Dial)
	}
	switch state {
	case Running:
		return s.explain("set the network of", v, tell(ctx))
	case Paused:
		v.debts.Owe(debt.Trust, func() {
			if err := tell(context.Background()); err != nil {
				m.cfg.Log.Error("a sandbox does not trust the authority of its secrets", "sandbox", s.id, "error", err)
			}
		})
	}
	return nil
}

// Link returns the link between a sandbox and forkd-net, from which callers learn the sandbox's
// traffic. It is nil if the sandbox has no VM.
func (m *Manager) Link(id string) (*netclient.Link, error) {
	s, err := m.Get(id)
	if err != nil {
		return nil, err
	}
	return s.link(), nil
}

func (s *Sandbox) link() *netclient.Link {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live == nil || !s.state.HasVM() {
		return nil
	}
	return s.live.link
}
