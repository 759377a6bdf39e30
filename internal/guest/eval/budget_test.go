package eval

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/forkd/forkd/internal/guest/kmsg"
	"github.com/forkd/forkd/internal/guest/reap"
	"github.com/forkd/forkd/internal/guest/userenv"
	"github.com/forkd/forkd/internal/host/agentclient"
)

// traffic counts the connections between client and agent, and the writes of both sides. In a VM,
// each write of the agent is a packet and an interrupt.
type traffic struct {
	connections, asked, answered atomic.Int64
	turns                        atomic.Int64 // changes of direction: two for each round trip
	agentWrote                   atomic.Bool  // whether the agent was the last to write
}

func (c *traffic) sub(before [4]int64) (n [4]int64) {
	now := c.all()
	for i := range n {
		n[i] = now[i] - before[i]
	}
	return n
}

func (c *traffic) all() [4]int64 {
	return [4]int64{c.connections.Load(), c.asked.Load(), c.answered.Load(), c.turns.Load()}
}

// end is one end of a connection.
type end struct {
	net.Conn
	traffic *traffic
	agent   bool
}

func (e end) Write(p []byte) (int, error) {
	if e.agent {
		e.traffic.answered.Add(1)
	} else {
		e.traffic.asked.Add(1)
	}
	if e.traffic.agentWrote.Swap(e.agent) != e.agent {
		e.traffic.turns.Add(1)
	}
	return e.Conn.Write(p)
}

// ends is a listener whose connections count as the agent's.
type ends struct {
	net.Listener
	traffic *traffic
}

func (l ends) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return end{c, l.traffic, true}, nil
}

// TestTrafficOfAnEval bounds the connections, writes and round trips of an evaluation, by the
// daemon's client of the agent. In a VM, each new connection costs a further round trip.
func TestTrafficOfAnEval(t *testing.T) {
	s := New(Config{Reaper: reap.New(), Env: userenv.New(), Log: kmsg.NewPlain(io.Discard)})
	s.backendOf = ownPython
	if _, err := s.defaultContext(python); err != nil {
		t.Skip(err)
	}
	socket := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var seen traffic
	server := &http.Server{Handler: s.Handler()}
	go server.Serve(ends{l, &seen})
	t.Cleanup(func() {
		server.Close()
		s.Close()
	})
	client := agentclient.New(func(ctx context.Context, _ uint32) (net.Conn, error) {
		seen.connections.Add(1)
		c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		return end{c, &seen, false}, err
	})
	eval := func(code, want string) [4]int64 {
		t.Helper()
		before := seen.all()
		r, err := client.Eval(t.Context(), code, agentclient.EvalOptions{})
		if err != nil || r.Err() != nil || r.Result == nil || *r.Result != want {
			t.Fatalf("%+v, %v", r, err)
		}
		return seen.sub(before)
	}
	eval("1+1", "2") // starts the interpreter
	for _, c := range []struct {
		name, code, want string
		most             [4]int64 // connections, writes of the client, writes of the agent, turns
	}{
		{"an expression", "2+2", "4", [4]int64{1, 1, 4, 2}},
		{"an expression and output", "print('x')\n2+3", "5", [4]int64{1, 1, 5, 2}},
	} {
		got := eval(c.code, c.want)
		for i, what := range []string{"connections", "writes of the client", "writes of the agent",
			"changes of direction"} {
			t.Logf("%s: %d %s of %d", c.name, got[i], what, c.most[i])
			if got[i] > c.most[i] {
				t.Errorf("%s: %s grew to %d, the budget is %d", c.name, what, got[i], c.most[i])
			}
		}
		if got[0] == 0 && got[1] == 0 {
			t.Errorf("%s: nothing was counted", c.name)
		}
	}
}
