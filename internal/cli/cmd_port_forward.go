package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newPortForwardCmd() *cobra.Command {
	c := common{streams: true}
	cmd := &cobra.Command{
		Use:   "port-forward ID [LOCAL:]REMOTE…",
		Short: "Forward ports of this host to a sandbox",
		Long: "Listens on 127.0.0.1 and forwards each connection to a server in the sandbox that listens on 127.0.0.1,\n" +
			"::1 or all addresses there. LOCAL is the port on this host (0: any free port; default: the port in the\n" +
			"sandbox). Prints a line for each port. Ctrl-C ends it.",
		Args: usageArgs(arguments(2, anyNumber)),
		RunE: func(cmd *cobra.Command, args []string) error {
			ports, err := parseForwards(args[1:])
			if err != nil {
				return usageError{err}
			}
			return c.runOn(cmd, args[0], func(ctx context.Context, cl *client.Client, id string) error {
				f := &forwarder{cl: cl, id: id, errOut: cmd.ErrOrStderr(), failed: make(chan error, len(ports))}
				return f.run(ctx, ports, func(list []forward) error { return c.printForwards(cmd.OutOrStdout(), list) })
			})
		},
	}
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}

// forward is a port of this host whose connections are forwarded to a sandbox.
type forward struct {
	Local  int `json:"local"`
	Remote int `json:"remote"`
}

func parseForwards(args []string) (list []forward, err error) {
	for _, arg := range args {
		local, remote, both := strings.Cut(arg, ":")
		if !both {
			local, remote = arg, arg
		}
		var f forward
		var errs [2]error
		f.Local, errs[0] = strconv.Atoi(local)
		f.Remote, errs[1] = strconv.Atoi(remote)
		if errors.Join(errs[:]...) != nil || f.Local < 0 || f.Local > maxPort || f.Remote < 1 || f.Remote > maxPort {
			return nil, fmt.Errorf("port %q: want REMOTE or LOCAL:REMOTE, numbers up to %d", arg, maxPort)
		}
		list = append(list, f)
	}
	return list, nil
}

const maxPort = 1<<16 - 1

func (c *common) printForwards(out io.Writer, list []forward) error {
	if c.json() {
		return writeJSON(out, list)
	}
	for _, f := range list {
		if _, err := printf(out, "127.0.0.1:%d -> %d\n", f.Local, f.Remote); err != nil {
			return err
		}
	}
	return nil
}

// forwarder forwards connections to one sandbox.
type forwarder struct {
	cl     *client.Client
	id     string
	failed chan error // errors of listeners

	mu sync.Mutex
	// +checklocks:mu
	errOut io.Writer
}

// run listens on the ports, calls ready(ports), and forwards connections until ctx ends. If a
// connection fails, run continues.
func (f *forwarder) run(ctx context.Context, ports []forward, ready func([]forward) error) error {
	if _, err := f.cl.Sandbox(ctx, f.id); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var streams sync.WaitGroup
	defer streams.Wait()
	defer cancel()
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			l.Close()
		}
	}()
	for i := range ports {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[i].Local)))
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
		ports[i].Local = l.Addr().(*net.TCPAddr).Port
	}
	if err := ready(ports); err != nil {
		return err
	}
	for i, l := range listeners {
		streams.Go(func() { f.failed <- f.serve(ctx, l, ports[i].Remote, &streams) })
	}
	select {
	case err := <-f.failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// serve forwards the connections of one listener until the listener is closed.
func (f *forwarder) serve(ctx context.Context, l net.Listener, remote int, streams *sync.WaitGroup) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		streams.Go(func() {
			defer conn.Close()
			if err := f.carry(ctx, conn.(*net.TCPConn), remote); err != nil && ctx.Err() == nil {
				f.mu.Lock()
				defer f.mu.Unlock()
				printf(f.errOut, "forkd: port %d: %s\n", remote, err)
			}
		})
	}
}

// carry forwards one connection until both of its directions have ended. If the connection to the
// sandbox fails, carry resets the local connection, so that the client does not mistake a part of
// the data for all data.
func (f *forwarder) carry(ctx context.Context, conn *net.TCPConn, remote int) error {
	port, err := f.cl.DialPort(ctx, f.id, remote)
	if err != nil {
		_ = conn.SetLinger(0)
		return err
	}
	defer port.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close(); port.Close() })
	defer stop()
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(port, conn)
		if err == nil {
			err = port.CloseWrite()
		}
		if err != nil {
			port.Close()
		}
		sent <- err
	}()
	_, err = io.Copy(conn, port)
	if err == nil {
		err = conn.CloseWrite()
	}
	if err != nil {
		_ = conn.SetLinger(0)
		conn.Close()
	}
	if gone := <-sent; err == nil {
		err = gone
	}
	return err
}
