package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/net/guesttest"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/frame/frametest"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// startLimit bounds the time until forkd-net answers.
const startLimit = 10 * time.Second

// startForkdNet starts a forkd-net as the daemon does. This forkd-net exits when the functions of
// the cleanup stack have run and forkd-net has no sandboxes any more.
func startForkdNet(ctx context.Context, undo *cleanup.Stack) (*netclient.Client, error) {
	dir, err := os.MkdirTemp("/tmp", "fkb")
	if err != nil {
		return nil, err
	}
	undo.Add(func() { os.RemoveAll(dir) })
	program, err := embedded.Open(embedded.Net)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, embedded.Net)
	if err := os.WriteFile(path, program, 0o700); err != nil {
		return nil, err
	}
	jails, err := jail.New(jail.Options{})
	if err != nil {
		return nil, err
	}
	c, err := netclient.New(netclient.Config{Bin: path, Dir: filepath.Join(dir, "net"), Jail: jails,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	undo.Add(c.Close)
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		_, err := c.Totals(ctx)
		if err == nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("forkd-net does not start: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// startForkdNetPeer connects the tap device of a client to a forkd-net, in the same way as a VM is
// connected.
func startForkdNetPeer(ctx context.Context, p *peer, undo *cleanup.Stack) error {
	c, err := startForkdNet(ctx, undo)
	if err != nil {
		return err
	}
	policy, err := netproto.ParsePolicy("allow", []string{hostAddress}, nil)
	if err != nil {
		return err
	}
	socket, err := join(c, "client", netclient.Setting{Policy: policy}, undo)
	if err != nil {
		return err
	}
	defer socket.Close()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", clientArg, tapArg)
	cmd.SysProcAttr, cmd.Stderr = namespace(), os.Stderr
	cmd.ExtraFiles = []*os.File{socket}
	return p.start(cmd, undo)
}

// join attaches a sandbox to forkd-net. It returns the sandbox's end of the frame socket.
func join(c *netclient.Client, id string, setting netclient.Setting, undo *cleanup.Stack) (*os.File, error) {
	var vm end
	link, err := c.Join(id, setting, &vm, nil)
	if err != nil {
		return nil, err
	}
	undo.Add(link.Close)
	link.Ready()
	return vm.socket, nil
}

// end is a VM that consists of the sandbox's end of the frame socket. It implements netclient.VM.
type end struct{ socket *os.File }

func (e *end) DialFrames() (other *os.File, err error) {
	e.socket, other, err = frametest.Pair()
	return other, err
}

func (*end) SetNet(context.Context, bool) error { return errors.New("forkd-net died") }

func (*end) Condemn(error) {}

// memory is the memory of a forkd-net, in KiB of Pss.
type memory struct {
	sandboxes           int
	empty, idle, active uint64
}

// measureMemory attaches n sandboxes to a new forkd-net. Then each sandbox sends one packet, which
// forkd-net refuses.
func measureMemory(ctx context.Context, n int) (*memory, error) {
	var undo cleanup.Stack
	defer undo.Run()
	c, err := startForkdNet(ctx, &undo)
	if err != nil {
		return nil, err
	}
	m := &memory{sandboxes: n}
	if m.empty, err = lab.PssKiB(c.PID()); err != nil {
		return nil, err
	}
	var sockets []*os.File
	for i := range n {
		socket, err := join(c, strconv.Itoa(i), netclient.Isolated(), &undo)
		if err != nil {
			return nil, err
		}
		undo.Add(func() { socket.Close() })
		if err := unix.SetNonblock(int(socket.Fd()), false); err != nil { // so that a read waits for an answer
			return nil, err
		}
		sockets = append(sockets, socket)
	}
	if _, err := c.Totals(ctx); err != nil { // answered after all sandboxes are attached
		return nil, err
	}
	if m.idle, err = lab.PssKiB(c.PID()); err != nil {
		return nil, err
	}
	for _, socket := range sockets {
		if _, err := socket.Write(guesttest.Frame(guesttest.SYN(frame.Guest, "198.51.100.1", 1024, 80))); err != nil {
			return nil, err
		}
		if _, err := socket.Read(make([]byte, frame.MaxMessage)); err != nil {
			return nil, err
		}
	}
	m.active, err = lab.PssKiB(c.PID())
	return m, err
}

func (m *memory) table() *report.Table {
	t := &report.Table{Title: "Memory of forkd-net (Pss)", Columns: []report.Column{
		{Name: "sandboxes"}, {Name: "what they did"}, {Name: "forkd-net KiB"}, {Name: "KiB per sandbox", Digits: 1}}}
	per := func(more, less uint64) float64 { return (float64(more) - float64(less)) / float64(m.sandboxes) }
	t.Add(0, "", m.empty, nil)
	t.Add(m.sandboxes, "never used the network", m.idle, per(m.idle, m.empty))
	t.Add(m.sandboxes, "sent a packet each, no connection", m.active, per(m.active, m.empty))
	t.Notef("a sandbox that never used the network has no network stack; one that did keeps its stack until it ends")
	t.Notef("garbage that Go has not collected yet is part of it")
	return t
}
