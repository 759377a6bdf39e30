package idle

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// answering returns a dial function of an agent with one answer. A mute agent never answers.
func answering(reply agentproto.Reply, mute bool) agentclient.DialFunc {
	return func(context.Context, uint32) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer ours.Close()
			var req agentproto.Request
			for json.NewDecoder(ours).Decode(&req) == nil {
				if !mute {
					_ = json.NewEncoder(ours).Encode(reply) // an error means that the client has left
				}
			}
		}()
		return theirs, nil
	}
}

func TestWorks(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		open   uint32
		netErr error
		reply  agentproto.Reply
		mute   bool
		share  float64 // part of one CPU that the guest uses
		cpuErr error
		want   bool
	}{
		"nothing":                      {},
		"an open connection":           {open: 1, want: true},
		"a lock":                       {reply: agentproto.Reply{Busy: true}, want: true},
		"an old agent":                 {reply: agentproto.Reply{Error: `unknown op "busy"`}},
		"an agent that fails":          {reply: agentproto.Reply{Error: "no", Busy: true}},
		"an agent without an answer":   {mute: true},
		"a little processor time":      {share: 0.2},
		"much processor time":          {share: 0.3, want: true},
		"much, and a mute agent":       {share: 2, mute: true, want: true},
		"nothing that can be measured": {netErr: broken, cpuErr: broken},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			g := Guest{
				Usage: func() (cgroup.Usage, error) {
					return cgroup.Usage{CPU: time.Duration(c.share * float64(time.Since(start)))}, c.cpuErr
				},
				Net: func(context.Context) (netproto.Stats, error) {
					return netproto.Stats{Open: c.open}, c.netErr
				},
				Dial: answering(c.reply, c.mute),
			}
			if got := g.Works(t.Context(), t.Context()); got != c.want {
				t.Errorf("%s: %v", name, got)
			}
			if took := time.Since(start); took > askLimit+window {
				t.Errorf("%s: it took %v", name, took)
			}
		})
	}
}
