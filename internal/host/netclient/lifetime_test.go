package netclient

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/process"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// Many sandboxes are joined while forkd-net exits again and again. At the end each sandbox has a
// network, with its own policy.
func TestForkdNetDies(t *testing.T) {
	cfg := newConfig(t)
	c := open(t, cfg)
	type joined struct {
		l *Link
		g *guest
	}
	var all []joined
	for round := range 3 {
		for i := range 10 {
			l, g := join(t, c, fmt.Sprintf("sb-%d-%d", round, i), netproto.Public())
			all = append(all, joined{l, g})
		}
		was := pid(t, c)
		if err := syscall.Kill(was, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := all[0].l.Set(t.Context(), Setting{Policy: netproto.Policy{Mode: netproto.ModeOpen}}); err != nil {
			t.Errorf("set a policy while forkd-net is down: %v", err)
		}
		for i, j := range all {
			want := "public "
			if i == 0 {
				want = "open "
			}
			j.g.say(t, "x", want+"x")
		}
		for moves := 0; moves <= round; _, moves = all[0].g.counts() { // until the method moved was called
			time.Sleep(time.Millisecond)
		}
		if pid(t, c) == was || c.Restarts() != uint64(round+1) {
			t.Errorf("round %d: process %d after %d, %d restarts", round, c.PID(), was, c.Restarts())
		}
	}
}

// If forkd-net dies while a VM is being restored, the VM keeps the frame socket that the restore
// gave it. The next forkd-net receives the other end of that socket.
func TestForkdNetDiesDuringAFork(t *testing.T) {
	c := open(t, newConfig(t))
	was := pid(t, c)
	g := &guest{}
	l, err := c.Join("a", Default(), g, g.moved)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(was, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for c.Restarts() == 0 || pid(t, c) == was {
		time.Sleep(time.Millisecond)
	}
	if g.given != 0 {
		t.Fatal("a VM that was not ready was given a frame socket")
	}
	if err := g.SetNet(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	l.Ready()
	g.say(t, "x", "public x")
	if g.given != 1 {
		t.Errorf("it was given %d frame sockets", g.given)
	}
}

// If the daemon ends before a VM has answered the request to use another frame socket, the next
// daemon must not assume that the VM is connected, even if forkd-net still runs. The next daemon
// connects the VM.
func TestDaemonEndsWhileAVMIsSilent(t *testing.T) {
	cfg := newConfig(t)
	first, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, g := join(t, first, "a", netproto.Public())
	g.say(t, "x", "public x")
	if _, moves := g.counts(); moves != 0 {
		t.Errorf("it was told %d times that its connections are gone", moves)
	}
	g.answer(withNothing)
	if err := syscall.Kill(pid(t, first), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for asked := 0; asked < 2; asked, _ = g.counts() { // join made the first call
		time.Sleep(time.Millisecond)
	}
	first.Close()
	g.answer(withSuccess)

	second := open(t, cfg)
	l := second.Adopt("a", Default(), g, g.moved)
	g.say(t, "y", "public y")
	l.Close()
}

// If a VM refuses another frame socket, it gets one from the next forkd-net.
func TestVMThatRefusesANetwork(t *testing.T) {
	c := open(t, newConfig(t))
	_, g := join(t, c, "a", netproto.Public())
	g.answer(withAnError)
	was := pid(t, c)
	if err := syscall.Kill(was, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for asked := 0; asked < 2; asked, _ = g.counts() { // join made the first call
		time.Sleep(time.Millisecond)
	}
	g.answer(withSuccess)
	if err := syscall.Kill(pid(t, c), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	g.say(t, "x", "public x")
}

// If a VM refuses another frame socket, or answers too late, the same client asks the VM again
// while the same forkd-net runs.
func TestVMThatRefusesANetworkIsAskedAgain(t *testing.T) {
	cfg := newConfig(t)
	cfg.retry = time.Millisecond
	c := open(t, cfg)
	_, g := join(t, c, "a", netproto.Public())
	g.answer(withAnError)
	if err := syscall.Kill(pid(t, c), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for asked := 0; asked < 4; asked, _ = g.counts() { // join made the first call
		time.Sleep(time.Millisecond)
	}
	g.answer(withSuccess)
	g.say(t, "x", "public x")
	if c.Restarts() != 1 {
		t.Errorf("forkd-net was restarted %d times", c.Restarts())
	}
}

// If a VM neither reads nor closes the frame sockets of killed forkd-nets, the VM is killed too.
// The data in these sockets takes memory of the host that no limit counts. Other VMs survive
// rollbacks and restarts of forkd-net.
func TestVMThatHoldsMemoryOfKilledProcessesIsCondemned(t *testing.T) {
	c := open(t, newConfig(t))
	_, honest := join(t, c, "honest", netproto.Public())
	_, hostile := join(t, c, "hostile", netproto.Public())
	hostile.keeps = true
	condemned := func(g *guest) error {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.condemned
	}
	for round := range maxFormer + 1 {
		if err := condemned(hostile); err != nil {
			t.Errorf("condemned after %d rounds: %v", round, err)
		}
		for _, g := range []*guest{honest, hostile} {
			fd, given := 0, 0
			for given <= round {
				g.mu.Lock()
				fd, given = g.fd, g.given
				g.mu.Unlock()
				time.Sleep(time.Millisecond)
			}
			g.say(t, "x", "public x")
			if _, err := unix.Write(fd, []byte("y")); err != nil { // the answer is not read
				t.Fatal(err)
			}
			for n := 0; n <= 0; n, _, _ = unix.Recvfrom(fd, make([]byte, 10), unix.MSG_PEEK|unix.MSG_DONTWAIT) {
				time.Sleep(time.Millisecond)
			}
		}
		if err := syscall.Kill(pid(t, c), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	for !netproto.IsCode(condemned(hostile), netproto.CodeHeld) {
		time.Sleep(time.Millisecond)
	}
	honest.say(t, "x", "public x")
	if err := condemned(honest); err != nil {
		t.Errorf("the honest VM is condemned: %v", err)
	}
}

// If forkd-net exits because of a request, or does not answer the request, it is replaced. The
// request is not sent to the new process, because the request could also crash that process.
func TestForkdNetThatMisbehaves(t *testing.T) {
	for _, id := range []string{vmfake.NetDies, vmfake.NetHangs} {
		t.Run(id, func(t *testing.T) {
			cfg := newConfig(t)
			cfg.patience = 300 * time.Millisecond
			c := open(t, cfg)
			_, g := join(t, c, "good", netproto.Public())
			g.say(t, "x", "public x")
			was := pid(t, c)
			l, err := c.Join(id, Default(), &guest{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			l.Ready()
			l.Close()
			for c.Restarts() == 0 {
				time.Sleep(time.Millisecond)
			}
			g.say(t, "y", "public y")
			if pid(t, c) == was {
				t.Error("it was not replaced")
			}
		})
	}
}

// If a VM holds memory of forkd-net, the VM is killed.
func TestVMThatHoldsMemoryIsCondemned(t *testing.T) {
	c := open(t, newConfig(t))
	_, g := join(t, c, vmfake.NetHeld, netproto.Public())
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		g.mu.Lock()
		why := g.condemned
		g.mu.Unlock()
		if netproto.IsCode(why, netproto.CodeHeld) {
			return
		}
	}
	t.Fatal("the VM was not condemned")
}

// The next daemon finds forkd-net. Sandboxes that it takes over keep their connections, and other
// sandboxes are removed.
func TestRestartOfTheDaemon(t *testing.T) {
	cfg := newConfig(t)
	first, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	was := pid(t, first)
	_, kept := join(t, first, "kept", netproto.Public())
	_, gone := join(t, first, "gone", netproto.Public())
	kept.say(t, "x", "public x")
	gone.say(t, "x", "public x")
	first.Close()
	kept.say(t, "y", "public y")

	second := open(t, cfg)
	l := second.Adopt("kept", Setting{Policy: netproto.Policy{Mode: netproto.ModeOpen}}, kept, kept.moved)
	second.Forget()
	if _, err := second.Totals(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept.say(t, "z", "open z")
	if second.PID() != was || kept.given != 1 {
		t.Errorf("process %d after %d; %d frame sockets", second.PID(), was, kept.given)
	}
	gone.ended(t, "a sandbox that is gone")
	l.Close()
}

// A forkd-net of another build is replaced, and the connections of its sandboxes are reset.
func TestAnotherBuildIsReplaced(t *testing.T) {
	cfg := newConfig(t)
	first, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	was := pid(t, first)
	_, g := join(t, first, "a", netproto.Public())
	g.say(t, "x", "public x")
	first.Close()

	other := filepath.Join(t.TempDir(), Name)
	from, err := os.Open(cfg.Bin)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(other, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.Bin = other
	second := open(t, cfg)
	l := second.Adopt("a", Default(), g, g.moved)
	g.say(t, "y", "public y")
	if second.PID() == was || g.given != 2 {
		t.Errorf("process %d after %d; %d frame sockets", second.PID(), was, g.given)
	}
	if err := syscall.Kill(was, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the other build: %v", err)
	}
	l.Close()
}

// forkd-net has its own memory limit, if the host supports limits. The kernel's OOM killer chooses
// forkd-net before the daemon.
func TestForkdNetIsBounded(t *testing.T) {
	cfg := newConfig(t)
	cfg.Cgroups = cgroup.Open(cgroup.Config{RunDir: t.TempDir(), StateDir: "/"})
	t.Cleanup(cfg.Cgroups.Close)
	c := open(t, cfg)
	process := pid(t, c)
	score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", process))
	if err != nil || strings.TrimSpace(string(score)) != strconv.Itoa(oomScore) {
		t.Errorf("its OOM score is %s, %v", score, err)
	}
	leaf := cfg.Cgroups.Find(Leaf)
	if leaf == nil {
		t.Skipf("no limits here: %v", cfg.Cgroups.Missing())
	}
	if use, err := leaf.Usage(); err != nil || use.Threads == 0 {
		t.Errorf("in its cgroup: %+v, %v", use, err)
	}
	if text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", process)); !strings.Contains(string(text), "GOMEMLIMIT=") {
		t.Errorf("its environment is %q", text)
	}
	c.Close()
	if cfg.Cgroups.Find(Leaf) != nil {
		t.Error("its cgroup is left")
	}
}

// A forkd-net without sandboxes exits with the daemon.
func TestCloseWithoutSandboxesEndsIt(t *testing.T) {
	c, err := New(newConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	was := pid(t, c)
	c.Close()
	if err := syscall.Kill(was, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d: %v", was, err)
	}
}

// The time limit of a request begins when forkd-net has answered all earlier requests. Therefore a
// queue of requests does not count as a hang.
func TestRequestsBehindOthersDoNotHang(t *testing.T) {
	const requests, patience = 8, 2 * time.Second
	dir := t.TempDir()
	listener, err := ctlsock.Listen(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(listener)
	ctl, err := ctlsock.Dial(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	forkdNet, err := ctlsock.Accept(listener)
	if err != nil {
		t.Fatal(err)
	}
	defer forkdNet.Close()
	bin := filepath.Join(dir, "sleeper")
	if err := os.WriteFile(bin, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	proc, err := process.Start(process.Spec{Name: "sleeper", Bin: bin, Record: filepath.Join(dir, "pid")})
	if err != nil {
		t.Fatal(err)
	}
	n := newConn(proc, nil, ctl, patience)
	defer n.end()
	answers := make(chan error, requests)
	for range requests {
		n.post(netproto.KindStats, nil, nil, func(_ []byte, err error) { answers <- err })
	}
	for range requests {
		if _, _, _, err := forkdNet.Receive(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(patience / 4) // each request takes this long
		if err := forkdNet.Send(netproto.KindOK, nil); err != nil {
			t.Fatal(err)
		}
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
	}
}
