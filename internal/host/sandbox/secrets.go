package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/atomicfile"
	durable "github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// secretsName is the file in a sandbox's data directory with the secrets of its network. It is the
// only place for them on disk: the record and what comes of it (a suspended state, a snapshot) have
// none. It stays while the sandbox is suspended, and goes with it.
const secretsName = "secrets.json"

// writeSecrets replaces the secrets in a data directory.
func writeSecrets(data string, secrets []netproto.Secret) error {
	path := filepath.Join(data, secretsName)
	if len(secrets) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove secrets: %w", err)
		}
		return nil
	}
	var stored durable.Secrets
	for _, s := range secrets {
		stored.List = append(stored.List, durable.Secret{Host: s.Host, Header: s.Header, Value: string(s.Value)})
	}
	p, err := durable.EncodeSecrets(&stored)
	if err == nil {
		err = os.MkdirAll(data, 0o700)
	}
	if err == nil {
		err = atomicfile.WriteDurable(path, p, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write secrets: %w", err)
	}
	return nil
}

// readSecrets returns the secrets in a data directory.
func readSecrets(data string) ([]netproto.Secret, error) {
	path := filepath.Join(data, secretsName)
	p, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	stored, err := durable.ParseSecrets(path, p)
	if err != nil {
		return nil, err
	}
	secrets := make([]netproto.Secret, len(stored.List))
	for i, s := range stored.List {
		secrets[i] = netproto.Secret{Host: s.Host, Header: s.Header, Value: netproto.Hidden(s.Value)}
	}
	return secrets, nil
}

// withSecrets adds to a record what the data directory of its sandbox keeps apart from it.
func (r *record) withSecrets(data string) error {
	secrets, err := readSecrets(data)
	if err != nil || len(secrets) == 0 {
		return err
	}
	r.Network.Secrets = secrets
	return nil
}

// fillSecrets gives those of wanted that have no value the one that they have among present: who
// changes a policy need not know the secrets. Errors name the field below prefix.
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

// trust has the guest of v trust the authority by which it knows forkd-net, where it has secrets.
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
