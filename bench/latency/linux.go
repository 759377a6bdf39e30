package main

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
)

// guestProgram measures in the guest, and is the load.
//
//go:embed guest.py
var guestProgram string

const (
	programPath  = "/tmp/latency.py"
	programReady = "/tmp/latency.ready"
	programPort  = 7002 // vsock

	recipe    = "python-numpy"
	linuxMiB  = 512
	linuxTag  = "latency"
	branchTag = "latency-branch"
)

// guestLimit bounds what a guest is asked to do, on a busy emulated host too.
const guestLimit = 3 * time.Minute

// linuxGuest is sandboxes of a recipe's image with more vCPUs.
type linuxGuest struct{ b *bench }

func (b *bench) newLinux(ctx context.Context, _ *cleanup.Stack) (guest, error) {
	r, err := b.host.Recipe(recipe)
	if err != nil {
		return nil, err
	}
	r.Tag, r.MemoryMiB, r.VCPUs = linuxTag, linuxMiB, vcpus
	b.Progress("baking %s with %d vCPUs", recipe, vcpus)
	return &linuxGuest{b}, b.host.WithManager(lab.Options{}, func(m *lab.Manager) error { return m.Bake(ctx, r) })
}

func (*linuxGuest) name() string { return recipe }

// lastVMM is VMMs of a build, the last of which can be asked directly.
type lastVMM struct {
	vmpool.VMMs
	mu   sync.Mutex
	last vmpool.VMM
}

// Spawn implements vmpool.VMMs.
func (l *lastVMM) Spawn(ctx context.Context, c vmpool.ShellConfig) (vmpool.VMM, error) {
	v, err := l.VMMs.Spawn(ctx, c)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = v
	return v, err
}

func (l *lastVMM) vmm() vmpool.VMM {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// measure measures all kinds in one sandbox.
func (g *linuxGuest) measure(ctx context.Context, of build, l load) (result, error) {
	all := result{}
	vmms := &lastVMM{VMMs: of.vmms}
	err := g.b.host.WithManager(lab.Options{VMMs: vmms}, func(m *lab.Manager) error {
		forked, err := m.Fork(ctx, sandbox.ForkRequest{Tag: linuxTag, N: 1})
		if err != nil {
			return err
		}
		id := forked.Sandboxes[0].ID
		if err := startProgram(ctx, m, id, l); err != nil {
			return fmt.Errorf("start the guest's program: %w", err)
		}
		dialing, cancel := context.WithTimeout(ctx, guestLimit)
		defer cancel()
		conn, err := agentclient.DialUnix(m.VsockSocket(id))(dialing, programPort)
		if err != nil {
			return err
		}
		defer conn.Close()
		time.Sleep(headStart)
		if all[request], err = timeRequests(ctx, vmms.vmm(), g.b.samples); err != nil {
			return err
		}
		if all[vsockTrip], err = timeTrips(conn, g.b.samples); err != nil {
			return err
		}
		if _, err := conn.Write(binary.LittleEndian.AppendUint32([]byte{'b'}, uint32(g.b.samples))); err != nil {
			return err
		}
		if all[blockRead], err = readTimes(conn); err != nil {
			return err
		}
		all[writeFault], err = g.writeFaults(ctx, m, id, conn)
		return err
	})
	return all, err
}

func startProgram(ctx context.Context, m *lab.Manager, id string, l load) error {
	busy := "spin"
	if l.leaves {
		busy = "leave"
	}
	script := fmt.Sprintf("python3 -IS %s %d %s %d %s >/tmp/latency.err 2>&1 </dev/null & "+
		"while [ ! -e %s ]; do kill -0 $! || { cat /tmp/latency.err >&2; exit 1; }; sleep 0.1; done",
		programPath, programPort, busy, l.vcpus, programReady, programReady)
	var r agentclient.ExecResult
	err := m.Use(ctx, id, "load", func(ctx context.Context, dial agentclient.DialFunc) (err error) {
		agent := agentclient.New(dial)
		if err := agent.WriteFile(ctx, programPath, "root", strings.NewReader(guestProgram)); err != nil {
			return err
		}
		r, err = agent.Exec(ctx, agentclient.ExecRequest{Args: []string{"/bin/sh", "-c", script}, Timeout: guestLimit})
		return err
	})
	if err == nil {
		err = r.Err()
	}
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("exit code %d: %s", r.ExitCode, r.Stderr)
	}
	return err
}

func timeTrips(conn net.Conn, n int) ([]float64, error) {
	samples, p := make([]float64, n), make([]byte, 1)
	for i := range samples {
		p[0] = 'p'
		begin := time.Now()
		if _, err := conn.Write(p); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(conn, p); err != nil {
			return nil, fmt.Errorf("wait for the guest: %w", err)
		}
		samples[i] = micros(time.Since(begin))
	}
	return samples, nil
}

// readTimes reads what the program has measured.
func readTimes(conn net.Conn) ([]float64, error) {
	var n [4]byte
	if _, err := io.ReadFull(conn, n[:]); err != nil {
		return nil, fmt.Errorf("wait for the guest: %w", err)
	}
	p := make([]byte, 8*binary.LittleEndian.Uint32(n[:]))
	if _, err := io.ReadFull(conn, p); err != nil {
		return nil, err
	}
	var samples []float64
	for ; len(p) > 0; p = p[8:] {
		samples = append(samples, micros(time.Duration(binary.LittleEndian.Uint64(p))))
	}
	return samples, nil
}

// writeFaults branches the sandbox again and again while it writes.
func (g *linuxGuest) writeFaults(ctx context.Context, m *lab.Manager, id string, conn net.Conn) ([]float64, error) {
	if _, err := conn.Write([]byte{'w'}); err != nil {
		return nil, err
	}
	time.Sleep(time.Second)
	var tags []string
	for i := range g.b.branches {
		tag := fmt.Sprintf("%s-%d", branchTag, i)
		r, err := m.Branch(ctx, id, sandbox.BranchRequest{Tag: tag, Mode: vm.BranchLive})
		if err != nil {
			return nil, err
		}
		if r.Figure.Mode != vm.BranchLive.String() {
			return nil, fmt.Errorf("this host cannot branch live: %s", r.Figure.Fallback)
		}
		tags = append(tags, tag)
	}
	if _, err := conn.Write([]byte{'p'}); err != nil {
		return nil, err
	}
	samples, err := readTimes(conn)
	if err == nil {
		_, err = io.ReadFull(conn, make([]byte, 1)) // the answer to the last byte
	}
	if err == nil {
		err = m.Kill(id)
	}
	for i := len(tags) - 1; err == nil && i >= 0; i-- {
		if err = g.b.host.Store.WaitFlushed(ctx, tags[i]); err == nil {
			_, err = g.b.host.Store.Delete(tags[i], store.DeleteSingle)
		}
	}
	return samples, err
}
