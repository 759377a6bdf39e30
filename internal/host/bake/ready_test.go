package bake

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// The texts of an agent's announcement are bounded, because every list of snapshots contains them.
func TestAnnouncementsAreBounded(t *testing.T) {
	long := strings.Repeat("x", 257)
	for name, c := range map[string]struct {
		ready agentproto.Ready
		want  string // text in the error; empty: the announcement is accepted
	}{
		"usual":            {agentproto.Ready{Kernel: "6.12", Warm: []string{"python"}}, ""},
		"another protocol": {agentproto.Ready{Version: -1}, "speaks protocol"},
		"a long kernel":    {agentproto.Ready{Kernel: long}, "257 bytes"},
		"a long language":  {agentproto.Ready{Warm: []string{"python", long}}, "257 bytes"},
		"many languages":   {agentproto.Ready{Warm: make([]string, 17)}, "17 warm languages"},
	} {
		if c.ready.Version == 0 {
			c.ready.Version = agentproto.Version
		}
		host, guest := net.Pipe()
		go func() {
			_ = json.NewEncoder(guest).Encode(c.ready) // fails only if the host reads too little
			guest.Close()
		}()
		_, err := readReady(t.Context(), host)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
