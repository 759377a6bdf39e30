package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/agent05"
)

// targetEnv says where clients of forkd 0.5 connect to a guest.
const targetEnv = "FORKD_TARGET"

// heldMargin is how much longer than they are held sandboxes live if nobody is left to end them.
const heldMargin = 60

// oldFork is `forkd fork --tag TAG --settle-secs N` of forkd 0.5: the sandboxes live as long as the
// command does, at most that time, and a single one is reached at $FORKD_TARGET. The class Sandbox
// of the Python package runs it.
type oldFork struct {
	tag     string
	settle  float64
	ignored bool
}

func (o *oldFork) register(f *pflag.FlagSet) {
	f.StringVar(&o.tag, "tag", "", "of forkd 0.5: the snapshot, whose sandboxes end with this command")
	f.Float64Var(&o.settle, "settle-secs", 2, "of forkd 0.5, with --tag: when they end at the latest")
	for _, name := range []string{"live-fork", "hugepages", "keep-workdir", "prewarm"} {
		f.BoolVar(&o.ignored, name, false, "of forkd 0.5; no effect")
	}
	for _, name := range []string{"tag", "settle-secs", "live-fork", "hugepages", "keep-workdir", "prewarm"} {
		_ = f.MarkHidden(name) // it fails only for a flag that does not exist
	}
}

func (o *oldFork) run(cmd *cobra.Command, c *common, req client.ForkRequest) error {
	if !(o.settle >= 0 && o.settle <= maxSettle) {
		return usageError{fmt.Errorf("--settle-secs %g: want 0 to %d", o.settle, maxSettle)}
	}
	req.SnapshotTag, req.TTLSecs = o.tag, o.settle+heldMargin
	c.streams = true // it goes on for long, and says why
	var listener net.Listener
	if req.N == 1 && !req.PerChildNetns {
		var err error
		if listener, err = listenTarget(os.Getenv(targetEnv)); err != nil {
			return err
		}
		defer listener.Close()
	}
	return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
		h := &held{settle: o.settle, errOut: cmd.ErrOrStderr()}
		return h.run(ctx, cl, req, listener)
	})
}

// maxSettle bounds how long sandboxes are held, in seconds: a day.
const maxSettle = 86400

// held are sandboxes that end with this command.
type held struct {
	settle float64
	errOut io.Writer
}

func (h *held) run(ctx context.Context, cl *client.Client, req client.ForkRequest, listener net.Listener) error {
	f, err := cl.Fork(ctx, req)
	if err != nil {
		return err
	}
	defer h.end(ctx, cl, f.Sandboxes)
	fmt.Fprintf(h.errOut, "forkd: %s, confirmed after %.1f ms; they end with this command, in %g s at the latest\n",
		count(len(f.Sandboxes), "sandbox", "sandboxes"), f.ForkWallMS, h.settle)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(h.settle*float64(time.Second)))
	defer cancel()
	if listener == nil {
		<-ctx.Done()
		return nil
	}
	fmt.Fprintf(h.errOut, "forkd: your user reaches %s at %s on this host\n", f.Sandboxes[0].ID, listener.Addr())
	guest := agent05.New(&guestOf{cl, f.Sandboxes[0].ID})
	err = agent05.Serve(ctx, listener, func(conn net.Conn) *agent05.Server {
		if err := isOurs(conn); err != nil {
			fmt.Fprintf(h.errOut, "forkd: a connection is refused: %v\n", err)
			return nil
		}
		return guest
	})
	if ctx.Err() != nil {
		return nil // that is how it ends
	}
	return err
}

// end removes the sandboxes, also after an interrupt.
func (h *held) end(ctx context.Context, cl *client.Client, sandboxes []client.Sandbox) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), heldMargin*time.Second)
	defer cancel()
	for _, s := range sandboxes {
		if err := cl.Kill(ctx, s.ID); err != nil && !client.IsNotFound(err) {
			fmt.Fprintf(h.errOut, "forkd: %s is left for at most %g s: %v\n", s.ID, h.settle+heldMargin, err)
		}
	}
}

// listenTarget listens where clients of forkd 0.5 look for a guest. It listens to this host only:
// the protocol knows no token.
func listenTarget(target string) (net.Listener, error) {
	target = cmp.Or(target, agent05.DefaultAddr)
	addr, err := net.ResolveTCPAddr("tcp", target)
	if err != nil {
		return nil, fmt.Errorf("$%s %q: want an address such as 127.0.0.1:8888: %w", targetEnv, target, err)
	}
	if !isLocal(addr.IP) {
		return nil, fmt.Errorf("%s is no address of this host's loopback, where clients of forkd 0.5 could reach a sandbox: "+
			"set %s=127.0.0.1:8888 for them, or run 'ip address add %s dev lo'", addr, targetEnv, addr.IP)
	}
	l, err := net.ListenTCP("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for clients of forkd 0.5 ($%s): %w", targetEnv, err)
	}
	return l, nil
}

// isLocal reports whether only this host reaches an address.
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

// guestOf is a sandbox for clients of forkd 0.5.
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
