package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/proto/frame"
)

// peer is a path from a client to the server, with its measurements.
type peer struct {
	name string
	note string // describes the client's interface
	to   string // address at which the client connects to the server
	in   io.WriteCloser
	out  *json.Decoder // nil if the peer is not installed

	down, up                         []float64
	request, request99, open, open99 []float64
}

// startPeers starts the clients and the programs that connect them to the host.
func startPeers(ctx context.Context, port int, undo *cleanup.Stack) ([]*peer, error) {
	at := func(address string) string { return net.JoinHostPort(address, strconv.Itoa(port)) }
	peers := []*peer{
		{name: "loopback, no peer", to: at("127.0.0.1")},
		{name: "forkd-net", note: fmt.Sprintf("MTU %d, TSO", frame.MTU), to: at(hostAddress)},
		{name: "pasta", note: fmt.Sprint("MTU ", largestMTU), to: at(hostGateway)},
		{name: "slirp4netns", note: fmt.Sprint("MTU ", largestMTU), to: at(slirpAddress)},
	}
	starts := []func(context.Context, *peer, *cleanup.Stack) error{startLoopback, startForkdNetPeer, startPasta,
		startSlirp}
	for i, p := range peers {
		if err := starts[i](ctx, p, undo); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return peers, nil
}

func startLoopback(ctx context.Context, p *peer, undo *cleanup.Stack) error {
	return p.start(exec.CommandContext(ctx, "/proc/self/exe", clientArg), undo)
}

// start runs a command that is the peer's client, or that starts the client.
func (p *peer) start(cmd *exec.Cmd, undo *cleanup.Stack) error {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if p.in, err = cmd.StdinPipe(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.out = json.NewDecoder(out)
	undo.Add(func() {
		p.in.Close() // at the end of its input, the client exits
		_ = cmd.Wait()
	})
	return nil
}

// largestMTU is the default MTU of pasta, and the MTU that rootless containers set for slirp4netns.
const largestMTU = 65520

// startPasta starts pasta, which in turn starts the client.
func startPasta(ctx context.Context, p *peer, undo *cleanup.Stack) error {
	path, err := exec.LookPath("pasta")
	if err != nil {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// Standard error is discarded, because pasta reports missing rights that it does not need here.
	return p.start(exec.CommandContext(ctx, path, "--foreground", "--config-net", "--ipv4-only", self, clientArg), undo)
}

// startSlirp connects slirp4netns to the network namespace of a client.
func startSlirp(ctx context.Context, p *peer, undo *cleanup.Stack) error {
	path, err := exec.LookPath("slirp4netns")
	if err != nil {
		return nil
	}
	client := exec.CommandContext(ctx, "/proc/self/exe", clientArg)
	client.SysProcAttr, client.Stderr = namespace(), os.Stderr
	if err := p.start(client, undo); err != nil {
		return err
	}
	ready, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	cmd := exec.CommandContext(ctx, path, "--configure", fmt.Sprint("--mtu=", largestMTU), "--ready-fd=3",
		strconv.Itoa(client.Process.Pid), "eth0")
	cmd.ExtraFiles = []*os.File{theirs}
	if err := errors.Join(cmd.Start(), theirs.Close()); err != nil {
		return err
	}
	undo.Add(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("it does not get ready: %w", err)
	}
	return nil
}

// round makes each measurement once.
func (p *peer) round(each time.Duration) error {
	if p.out == nil {
		return nil
	}
	for _, op := range []byte{opDown, opUp, opRequest, opConnect} {
		var r result
		if err := json.NewEncoder(p.in).Encode(order{op, p.to, each}); err != nil {
			return fmt.Errorf("%s: its client has ended: %w", p.name, err)
		}
		if err := p.out.Decode(&r); err != nil {
			return fmt.Errorf("%s: its client has ended: %w", p.name, err)
		}
		if r.Error != "" {
			return fmt.Errorf("%s: %s", p.name, r.Error)
		}
		switch op {
		case opDown:
			p.down = append(p.down, r.MiBps)
		case opUp:
			p.up = append(p.up, r.MiBps)
		case opRequest:
			p.request, p.request99 = append(p.request, r.P50), append(p.request99, r.P99)
		case opConnect:
			p.open, p.open99 = append(p.open, r.P50), append(p.open99, r.P99)
		}
	}
	return nil
}

func peersTable(peers []*peer) *report.Table {
	t := &report.Table{Title: "A client in a namespace to a server on the host (median of the rounds)",
		Columns: []report.Column{
			{Name: "peer"}, {Name: "interface"}, {Name: "rounds"}, {Name: "down MiB/s"}, {Name: "up MiB/s"},
			{Name: "request p50 µs"}, {Name: "request p99 µs"}, {Name: "connect p50 µs"}, {Name: "connect p99 µs"}}}
	for _, p := range peers {
		row := []any{p.name, p.note, len(p.down)}
		for _, samples := range [][]float64{p.down, p.up, p.request, p.request99, p.open, p.open99} {
			row = append(row, report.Cell(report.Quantile(samples, 0.5)))
		}
		t.Add(row...)
	}
	t.Notef("the client is a Linux network stack in a namespace; a sandbox has a guest kernel and a VMM instead")
	t.Notef("request: %d bytes there and back on one connection; connect: open, one byte there and back", requestBytes)
	t.Notef("forkd-net's row has one more copy than with a VM: a process between tap device and frame socket")
	t.Notef("a blank row: the program is not installed (Debian packages passt and slirp4netns)")
	return t
}
