// Package compat05 implements the parts of the CLI that forkd 0.5's Python package uses. It holds
// sandboxes until a command ends, and makes sandboxes reachable like forkd 0.5's agent (package
// agent05).
//
// It parses no command line: internal/cli/compat05.go has the flags and commands of forkd 0.5.
package compat05

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/compat05/agent05"
)

// TargetEnv is the variable with the address at which clients of forkd 0.5 connect to a guest.
const TargetEnv = "FORKD_TARGET"

// holdMargin is added to the lifetime of held sandboxes, in seconds. The daemon deletes the
// sandboxes after that time if this process does not delete them.
const holdMargin = 60

// MaxSettle bounds the time for which sandboxes are held, in seconds: a day.
const MaxSettle = 86400

// Hold keeps sandboxes running until Run returns.
type Hold struct {
	Settle   float64      // seconds until Run returns
	Listener net.Listener // accepts connections of forkd 0.5's clients to the only sandbox; may be nil
	Say      func(text string)
}

// Run forks sandboxes, and kills them when ctx ends or after h.Settle seconds.
func (h *Hold) Run(ctx context.Context, cl *client.Client, req client.ForkRequest) error {
	req.TTLSecs = h.Settle + holdMargin
	f, err := cl.Fork(ctx, req)
	if err != nil {
		return err
	}
	defer h.end(ctx, cl, f.Sandboxes)
	what := "sandboxes"
	if len(f.Sandboxes) == 1 {
		what = "sandbox"
	}
	h.Say(fmt.Sprintf("%d %s, confirmed after %.1f ms; they end with this command, in %g s at the latest",
		len(f.Sandboxes), what, f.ForkWallMS, h.Settle))
	ctx, cancel := context.WithTimeout(ctx, time.Duration(h.Settle*float64(time.Second)))
	defer cancel()
	if h.Listener == nil {
		<-ctx.Done()
		return nil
	}
	h.Say(fmt.Sprintf("your user reaches %s at %s on this host", f.Sandboxes[0].ID, h.Listener.Addr()))
	guest := agent05.New(&guestOf{cl, f.Sandboxes[0].ID})
	err = agent05.Serve(ctx, h.Listener, func(conn net.Conn) *agent05.Server {
		if err := isOurs(conn); err != nil {
			h.Say(fmt.Sprintf("a connection is refused: %v", err))
			return nil
		}
		return guest
	})
	if ctx.Err() != nil {
		return nil // the time has passed
	}
	return err
}

// end kills the sandboxes, even if ctx has been cancelled by an interrupt.
func (h *Hold) end(ctx context.Context, cl *client.Client, sandboxes []client.Sandbox) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), holdMargin*time.Second)
	defer cancel()
	for _, s := range sandboxes {
		if err := cl.Kill(ctx, s.ID); err != nil && !client.IsNotFound(err) {
			h.Say(fmt.Sprintf("%s is left for at most %g s: %v", s.ID, h.Settle+holdMargin, err))
		}
	}
}

// ListenTarget listens at the given target or, if the target is empty, at the address to which
// clients of forkd 0.5 connect. It refuses addresses that other hosts can reach, because the
// protocol has no token.
func ListenTarget(target string) (net.Listener, error) {
	target = cmp.Or(target, agent05.DefaultAddr)
	addr, err := net.ResolveTCPAddr("tcp", target)
	if err != nil {
		return nil, fmt.Errorf("$%s %q: want an address such as 127.0.0.1:8888: %w", TargetEnv, target, err)
	}
	if !isLocal(addr.IP) {
		return nil, fmt.Errorf("%s is no address of this host's loopback, where clients of forkd 0.5 could reach a sandbox: "+
			"set %s=127.0.0.1:8888 for them, or run 'ip address add %s dev lo'", addr, TargetEnv, addr.IP)
	}
	l, err := net.ListenTCP("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for clients of forkd 0.5 ($%s): %w", TargetEnv, err)
	}
	return l, nil
}

// isLocal reports whether only this host can connect to an address.
func isLocal(ip net.IP) bool {
	if ip.IsLoopback() {
		return true
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return false
	}
	addrs, err := lo.Addrs()
	if err != nil {
		return false
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
			return true
		}
	}
	return false
}

// guestOf implements agent05.Guest for a sandbox.
type guestOf struct {
	cl *client.Client
	id string
}

func (g *guestOf) Ping(ctx context.Context) (client.Pong, error) { return g.cl.Ping(ctx, g.id) }

func (g *guestOf) Exec(ctx context.Context, req client.ExecRequest) (client.ExecResult, error) {
	return g.cl.Exec(ctx, g.id, req)
}

func (g *guestOf) Eval(ctx context.Context, req client.EvalRequest) (client.EvalResult, error) {
	return g.cl.Eval(ctx, g.id, req)
}
