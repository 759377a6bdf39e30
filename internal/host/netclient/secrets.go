package netclient

import (
	"fmt"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// FillSecrets returns the wanted secrets. A wanted secret without a value takes the value that the
// same secret has now. So a client can change a policy without knowing the secrets. Errors name the
// field, with the given prefix.
func FillSecrets(prefix string, wanted, present []netproto.Secret) ([]netproto.Secret, error) {
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
