package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/registry"
)

// maxSecretFile bounds the bytes read from a secret's file. The daemon's limit is lower.
const maxSecretFile = 1 << 20

// readSecrets reads the secrets of --secret flags, which have the form of `docker build`: id=ID
// with src=FILE or env=VARIABLE. If a flag has neither src nor env, the source is the variable with
// the name ID if it is set, or else the file with this name.
func readSecrets(flags []string) (map[string][]byte, error) {
	secrets := make(map[string][]byte)
	for _, flag := range flags {
		var id, file, variable string
		for field := range strings.SplitSeq(flag, ",") {
			name, value, _ := strings.Cut(field, "=")
			switch name {
			case "id":
				id = value
			case "src", "source":
				file = value
			case "env":
				variable = value
			case "type":
				if value != "env" && value != "file" {
					return nil, usageError{fmt.Errorf("--secret %s: type=%s: want file or env", flag, value)}
				}
			default:
				return nil, usageError{fmt.Errorf("--secret %s: %q: want id=ID,src=FILE or id=ID,env=VARIABLE", flag, name)}
			}
		}
		if id == "" || file != "" && variable != "" {
			return nil, usageError{fmt.Errorf("--secret %s: want id=ID,src=FILE or id=ID,env=VARIABLE", flag)}
		}
		secret, err := readSecret(id, file, variable)
		if err != nil {
			return nil, fmt.Errorf("--secret id=%s: %w", id, err)
		}
		secrets[id] = secret
	}
	return secrets, nil
}

func readSecret(id, file, variable string) ([]byte, error) {
	if file == "" {
		value, ok := os.LookupEnv(cmp.Or(variable, id))
		if ok {
			return []byte(value), nil
		}
		if variable != "" {
			return nil, fmt.Errorf("the variable %s is not set", variable)
		}
	}
	f, err := os.Open(cmp.Or(file, id))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	secret, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err == nil && len(secret) > maxSecretFile {
		err = fmt.Errorf("%s: more than %d bytes", f.Name(), maxSecretFile)
	}
	return secret, err
}

// registryAuth returns the credentials for registries in Docker's configuration.
func registryAuth(ctx context.Context, hosts []string) (map[string]client.RegistryAuth, error) {
	auths := make(map[string]client.RegistryAuth)
	for _, host := range hosts {
		name, err := registry.Name(host)
		if err != nil {
			return nil, usageError{fmt.Errorf("--registry-auth: %w", err)}
		}
		l, ok, err := registry.StoredLogin(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("--registry-auth %s: read Docker's configuration: %w", host, err)
		}
		if !ok {
			return nil, fmt.Errorf("--registry-auth %s: Docker's configuration has no credentials for it: run 'docker login %[1]s'",
				host)
		}
		auths[name] = client.RegistryAuth{Username: l.User, Password: l.Password, IdentityToken: l.IdentityToken,
			RegistryToken: l.RegistryToken}
	}
	return auths, nil
}
