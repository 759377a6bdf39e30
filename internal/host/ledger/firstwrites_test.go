package ledger

import (
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/proto/netproto"
)

func TestWritesAsOthers(t *testing.T) {
	secret := netclient.Setting{Secrets: []netproto.Secret{{Host: "a.b", Header: "X", Value: "s3cr3t"}}}
	for name, c := range map[string]struct {
		r    Record
		want bool
	}{
		"nothing of its own":  {Record{}, true},
		"a usual environment": {Record{Env: map[string]string{"A": strings.Repeat("a", usualEnv-1)}}, true},
		"a large value":       {Record{Env: map[string]string{"A": strings.Repeat("a", usualEnv)}}, false},
		"a large name":        {Record{Env: map[string]string{strings.Repeat("A", usualEnv+1): ""}}, false},
		"large in many": {Record{Env: map[string]string{"A": strings.Repeat("a", usualEnv/2),
			"B": strings.Repeat("b", usualEnv/2)}}, false},
		"a network of its own": {Record{Network: netclient.Setting{}}, true},
		"a secret":             {Record{Network: secret}, false},
	} {
		if have := c.r.WritesAsOthers(); have != c.want {
			t.Errorf("%s: %v, want %v", name, have, c.want)
		}
	}
}
