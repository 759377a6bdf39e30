package apirig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// agents starts the agents of guests and stops them.
type agents struct {
	t       T
	command func(dir string) *exec.Cmd
	dial    func(context.Context) error // called before every connection; may be nil
	files   *files                      // private files of guests; nil: they have none

	mu      sync.Mutex
	running map[*guest]bool
	stopped bool
}

// guest is a real agent that runs on this host instead of in a VM. It is started by the first
// connection, and stopped when its VM ends.
type guest struct {
	of    *agents
	vm    string          // directory of the VM
	ended <-chan struct{} // closed when the VM ends
	env   map[string]string

	mu      sync.Mutex
	started bool
	err     error // error of starting the agent

	dir string // directory of the agent's sockets; set before the agent starts
	cmd *exec.Cmd
}

// guests returns a function that returns the guest of a VM. If a single guest is given, it is the
// guest of every VM. If it is nil, each VM has a new agent as its guest.
func (a *agents) guests(one sandbox.Guest, vmms *vmfake.VMMs) func(owner, vsock string) sandbox.Guest {
	return func(_, vsock string) sandbox.Guest {
		if one != nil {
			return one
		}
		return &guest{of: a, vm: filepath.Dir(vsock), ended: vmms.Ended(filepath.Dir(vsock))}
	}
}

// run starts the agent.
func (a *agents) run(g *guest) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return errors.New("the rig has ended")
	}
	var err error
	// Use a short path, because it is part of the paths of unix sockets.
	if g.dir, err = os.MkdirTemp("/tmp", "fka"); err != nil {
		return err
	}
	g.cmd = a.command(g.dir)
	g.cmd.Stderr = os.Stderr
	if a.files != nil {
		own, err := a.files.of(g.vm)
		if err != nil {
			return errors.Join(err, os.RemoveAll(g.dir))
		}
		g.cmd.Env = append(g.cmd.Environ(), FilesEnv+"="+own)
	}
	if err := g.cmd.Start(); err != nil {
		a.t.Errorf("agent: %v", err)
		return errors.Join(err, os.RemoveAll(g.dir))
	}
	a.running[g] = true
	go func() {
		<-g.ended
		a.end(g)
	}()
	return nil
}

// end stops an agent and all of its child processes. Further calls for the same agent do nothing.
func (a *agents) end(g *guest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.running[g] {
		return
	}
	delete(a.running, g)
	below := descendants(g.cmd.Process.Pid)
	_ = g.cmd.Process.Kill() // fails only if the agent has exited
	for _, pid := range below {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = g.cmd.Wait() // the error says that the agent was killed
	if err := os.RemoveAll(g.dir); err != nil {
		a.t.Errorf("agent: %v", err)
	}
}

// restart ends the agent of a VM. The next connection starts it again.
func (a *agents) restart(vm string) {
	a.mu.Lock()
	var found []*guest
	for g := range a.running {
		if g.vm == vm {
			found = append(found, g)
		}
	}
	a.mu.Unlock()
	for _, g := range found {
		g.mu.Lock()
		a.end(g)
		g.started = false
		g.mu.Unlock()
	}
}

func (a *agents) stop() {
	a.mu.Lock()
	a.stopped = true
	var left []*guest
	for g := range a.running {
		left = append(left, g)
	}
	a.mu.Unlock()
	for _, g := range left {
		a.end(g)
	}
}

// descendants returns the ids of a process's child processes, of their child processes, and so on.
func descendants(pid int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // fails only for an invalid pattern
	children := map[int][]int{}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the process has exited
		}
		own, _ := strconv.Atoi(filepath.Base(filepath.Dir(path))) // the pattern matches only numbers
		var state string
		var parent int
		// The process's name may contain any characters, so begin after the last parenthesis.
		behind := text[bytes.LastIndexByte(text, ')')+1:]
		if _, err := fmt.Sscan(string(behind), &state, &parent); err == nil {
			children[parent] = append(children[parent], own)
		}
	}
	var below []int
	for next := children[pid]; len(next) > 0; {
		below = append(below, next[0])
		next = append(next[1:], children[next[0]]...)
	}
	return below
}

// Forked confirms the identity of a child at once. The child's agent is a new process, which is
// started with the environment variables of the fork.
func (g *guest) Forked(_ context.Context, f agentproto.Forked) (*agentproto.Unique, error) {
	g.env = f.Env
	return &agentproto.Unique{}, nil
}

// Dial connects to the agent. The first call starts it.
func (g *guest) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	dir, err := g.start(ctx)
	if err != nil {
		return nil, err
	}
	if g.of.dial != nil {
		if err := g.of.dial(ctx); err != nil {
			return nil, err
		}
	}
	return g.connect(ctx, dir, port)
}

// start starts the agent if it does not run yet, and returns the directory of its sockets.
func (g *guest) start(ctx context.Context) (dir string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.started {
		return g.dir, g.err
	}
	g.started = true
	if g.err = g.of.run(g); g.err == nil && len(g.env) > 0 {
		dir := g.dir
		dial := func(ctx context.Context, port uint32) (net.Conn, error) { return g.connect(ctx, dir, port) }
		g.err = agentclient.New(dial).SetDefaults(context.WithoutCancel(ctx), agentclient.Defaults{Env: g.env})
	}
	return g.dir, g.err
}

// connect waits until the agent listens.
func (g *guest) connect(ctx context.Context, dir string, port uint32) (net.Conn, error) {
	for {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", filepath.Join(dir, strconv.Itoa(int(port))))
		if err == nil || !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
		select {
		case <-time.After(5 * time.Millisecond): // the agent does not listen yet
		case <-g.ended:
			return nil, errors.New("the VM has ended")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
