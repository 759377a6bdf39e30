package netclient

import (
	"fmt"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// FillSecrets gives the secrets in wanted that have no value their values in present, so that a
// client that changes a policy need not know the secrets. Errors name the field below prefix.
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
