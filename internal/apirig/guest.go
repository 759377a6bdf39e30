package apirig

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// guest is a real agent on this host, in place of one in a VM.
type guest struct {
	t     testing.TB
	dir   string
	agent func(dir string) *exec.Cmd
	dial  func(context.Context) error
	start sync.Once
}

func newGuest(t testing.TB, o *Options) *guest {
	dir, err := os.MkdirTemp("/tmp", "fka") // short: unix sockets are in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &guest{t: t, dir: dir, agent: o.Agent, dial: o.Dial}
}

// run starts the agent, which ends with the test.
func (g *guest) run() {
	cmd := g.agent(g.dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		g.t.Error(err)
		return
	}
	g.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
}

func (g *guest) Forked(context.Context, agentproto.Forked) (*agentproto.Unique, error) {
	return &agentproto.Unique{}, nil
}

// Dial starts the agent when it is called first.
func (g *guest) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	g.start.Do(g.run)
	if g.dial != nil {
		if err := g.dial(ctx); err != nil {
			return nil, err
		}
	}
	for {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", filepath.Join(g.dir, strconv.Itoa(int(port))))
		if err == nil || !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
		select {
		case <-time.After(5 * time.Millisecond): // it is about to listen
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
