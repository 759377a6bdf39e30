package net

import (
	"testing"

	"github.com/forkd/forkd/internal/jail/posture"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// A forkd-net process is in its jail, but can use the host's network.
func TestPosture(t *testing.T) {
	path, p := startProcess(t)
	d := connect(t, path)
	d.must(netproto.KindHello, &netproto.Hello{Version: netproto.Version})
	for _, loose := range posture.Check(p.Pid, posture.Want{Online: true, Descriptors: []string{
		"(/dev)?/null", `(socket|pipe):\[\d+\]`, `anon_inode:\[(eventpoll|eventfd)\]`,
		`/.*cpu\.(max|cfs_quota_us|cfs_period_us)`, // the cgroup's CPU limit, which the Go runtime reads
	}}) {
		t.Error(loose)
	}
}
