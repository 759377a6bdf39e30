package sandbox

import (
	"context"
	"fmt"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// fillSecrets gives the secrets in wanted that have no value the values they have in present, so
// that a client that changes a policy need not know the secrets. Errors name the field with the
// given prefix.
func fillSecrets(prefix string, wanted, present []netproto.Secret) ([]netproto.Secret, error) {
	filled := make([]netproto.Secret, len(wanted))
	for i, s := range wanted {
		for j := range present {
			if s.Value == "" && s.Is(&present[j]) {
				s.Value = present[j].Value
			}
		}
		if s.Value == "" {
			return nil, invalid.Errorf(fmt.Sprintf("%ssecrets[%d].value", prefix, i),
				"missing: the sandbox has no secret for %s of %s yet",
				s.Header, s.Host)
		}
		filled[i] = s
	}
	return filled, nil
}

// trust makes the guest of v trust forkd-net's authority, if it has secrets.
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
