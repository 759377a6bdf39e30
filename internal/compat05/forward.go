package compat05

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/compat05/agent05"
)

// Forward serves the protocol of forkd 0.5's agent on this host until ctx ends. It listens at the
// addresses that a daemon with --guest-port reports for sandboxes. It passes the text of each error
// to the given function.
func Forward(ctx context.Context, cl *client.Client, port int, say func(text string)) error {
	l, err := listenLoopback(ctx, port)
	if err != nil {
		return err
	}
	say(fmt.Sprintf("your user reaches sandboxes at their guest_addr, port %d, on this host", port))
	g := &guests{cl: cl, say: say, servers: map[string]*agent05.Server{}}
	return agent05.Serve(ctx, l, func(conn net.Conn) *agent05.Server { return g.of(ctx, conn) })
}

// listenLoopback returns a listener for all addresses of the loopback interface, and for no other
// address.
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

// guests finds the sandbox for the address of a connection.
type guests struct {
	cl  *client.Client
	say func(text string)

	mu sync.Mutex
	// +checklocks:mu
	servers map[string]*agent05.Server // the servers by the sandbox's id
}

// of(ctx, conn) returns the server of the sandbox whose address is the connection's local address.
// It returns nil if there is no such sandbox.
func (g *guests) of(ctx context.Context, conn net.Conn) *agent05.Server {
	s, err := g.find(ctx, conn)
	if err != nil {
		g.say(fmt.Sprintf("a connection to %s is refused: %v", conn.LocalAddr(), err))
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
