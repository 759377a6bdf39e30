package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/agent05"
)

func newForwardGuestsCmd() *cobra.Command {
	c := common{streams: true}
	var port int
	cmd := &cobra.Command{
		Use:   "forward-guests",
		Short: "Make sandboxes reachable at their addresses, for programs made for forkd 0.5",
		Long: "A daemon with --guest-port tells clients of forkd 0.5 an address of the loopback interface for each sandbox\n" +
			"(guest_addr). This command answers at all of them, on this host, as the agent of forkd 0.5 did, until Ctrl-C. What\n" +
			"comes in is done with your token; programs of other users of this host are refused.",
		Example: "  forkd forward-guests &\n" +
			"  python3 -c 'from forkd import Controller, Sandbox\n" +
			"  child = Controller().spawn_sandboxes(\"base\")[0]\n" +
			"  print(Sandbox(target=child[\"guest_addr\"], spawn=False).commands.run(\"id\"))'",
		Args: usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if port < 1 || port > maxPort {
				return usageError{fmt.Errorf("--port %d: want 1 to %d", port, maxPort)}
			}
			if c.json() {
				return usageError{errors.New("-o json: there is nothing to print")}
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				l, err := listenLoopback(ctx, port)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "forkd: your user reaches sandboxes at their guest_addr, port %d, on this host\n",
					port)
				g := &guests{cl: cl, errOut: cmd.ErrOrStderr(), servers: map[string]*agent05.Server{}}
				return agent05.Serve(ctx, l, func(conn net.Conn) *agent05.Server { return g.of(ctx, conn) })
			})
		},
	}
	cmd.Flags().IntVar(&port, "port", agent05.Port, "that of the daemon's --guest-port")
	c.register(cmd)
	return cmd
}

// listenLoopback listens at all addresses of the loopback interface, and at no other's.
func listenLoopback(ctx context.Context, port int) (net.Listener, error) {
	onLoopback := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if ctl := raw.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), "lo") }); ctl != nil {
			return ctl
		}
		return err
	}}
	l, err := onLoopback.Listen(ctx, "tcp4", fmt.Sprintf("0.0.0.0:%d", port))
	if err != nil {
		return nil, fmt.Errorf("listen on the loopback interface (--port, with the daemon's --guest-port, chooses another one): %w", err)
	}
	return l, nil
}

// guests are all sandboxes, by the addresses that the daemon tells.
type guests struct {
	cl     *client.Client
	errOut io.Writer

	mu      sync.Mutex
	servers map[string]*agent05.Server // by the id of the sandbox
}

// of returns who speaks for the sandbox that a connection is for, nil for nobody.
func (g *guests) of(ctx context.Context, conn net.Conn) *agent05.Server {
	s, err := g.find(ctx, conn)
	if err != nil {
		fmt.Fprintf(g.errOut, "forkd: a connection to %s is refused: %s\n", conn.LocalAddr(), printable(err))
		return nil
	}
	return s
}

func (g *guests) find(ctx context.Context, conn net.Conn) (*agent05.Server, error) {
	if err := isOurs(conn); err != nil {
		return nil, err
	}
	list, err := g.cl.Sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	id, there := "", make(map[string]bool, len(list))
	for _, s := range list {
		there[s.ID] = true
		if s.GuestAddr != conn.LocalAddr().String() {
			continue
		}
		if id != "" {
			return nil, fmt.Errorf("the sandboxes %s and %s both have this address: use them by their ids", id, s.ID)
		}
		id = s.ID
	}
	if id == "" {
		return nil, errors.New("no sandbox has this address: was the daemon started with --guest-port?")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for old := range g.servers {
		if !there[old] {
			delete(g.servers, old)
		}
	}
	s := g.servers[id]
	if s == nil {
		s = agent05.New(&guestOf{g.cl, id})
		g.servers[id] = s
	}
	return s, nil
}
