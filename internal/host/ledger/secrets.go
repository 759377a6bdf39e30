package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/atomicfile"
	durable "github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// SecretsFile is the name of the file with the secrets of a sandbox's network, in the sandbox's
// data directory. The secrets are in no other file: records, suspended states and snapshots do not
// contain them. The file stays while the sandbox is suspended, and is deleted with the sandbox.
const SecretsFile = "secrets.json"

// WriteSecrets replaces the secrets in a data directory.
func WriteSecrets(data string, secrets []netproto.Secret) error {
	path := filepath.Join(data, SecretsFile)
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
	path := filepath.Join(data, SecretsFile)
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

// AddSecrets adds the secrets in a sandbox's data directory to the sandbox's record.
func (r *Record) AddSecrets(data string) error {
	secrets, err := readSecrets(data)
	if err != nil || len(secrets) == 0 {
		return err
	}
	r.Network.Secrets = secrets
	return nil
}
