package netclient

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

func newConfig(t *testing.T) Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Config{Bin: self, Dir: filepath.Join(t.TempDir(), "net"), Log: slog.New(slog.DiscardHandler)}
}

func open(t *testing.T, cfg Config) *Client {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// guest is the VM of a link: it uses the latest frame socket that it was given.
type guest struct {
	mu    sync.Mutex
	fd    int
	given int
}

// give implements Give.
func (g *guest) give(vmm *os.File) error {
	f, err := duplicate(vmm)
	if err != nil {
		return err
	}
	fd, err := unix.Dup(int(f.Fd()))
	_ = f.Close()
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fd != 0 {
		_ = unix.Close(g.fd)
	}
	g.fd, g.given = fd, g.given+1
	return nil
}

// say sends a frame and waits for the answer. What is lost with a frame socket is sent again on the
// next.
func (g *guest) say(t *testing.T, frame, want string) {
	t.Helper()
	buf := make([]byte, 100)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		g.mu.Lock()
		fd, _ := unix.Dup(g.fd)
		g.mu.Unlock()
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
		_, err := unix.SendmsgN(fd, []byte(frame), nil, nil, unix.MSG_NOSIGNAL)
		n := 0
		if err == nil {
			_ = unix.SetNonblock(fd, false)
			n, _ = unix.Read(fd, buf)
			_ = unix.SetNonblock(fd, true)
		}
		_ = unix.Close(fd)
		if n > 0 && string(buf[:n]) == want {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("%q was not answered with %q, but %q", frame, want, buf)
}

// ended waits for the end of the frame socket, behind answers to frames that were sent more than
// once.
func (g *guest) ended(t *testing.T, what string) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for {
			n, err := unix.Read(g.fd, make([]byte, 100))
			if n == 0 && err == nil {
				return
			}
			if err != nil {
				break
			}
		}
	}
	t.Errorf("%s has not ended", what)
}

// join joins a VM.
func join(t *testing.T, c *Client, id string, p netproto.Policy) (*Link, *guest) {
	t.Helper()
	g := &guest{}
	l, vmm, err := c.Join(id, Setting{Policy: p}, g.give)
	if err != nil {
		t.Fatal(err)
	}
	defer vmm.Close()
	if err := g.give(vmm); err != nil {
		t.Fatal(err)
	}
	l.Ready()
	return l, g
}

func pid(t *testing.T, c *Client) int {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if pid := c.PID(); pid != 0 {
			return pid
		}
	}
	t.Fatal("there is no forkd-net")
	return 0
}

// A sandbox that was joined before forkd-net ran keeps its first frame; its policy changes while it
// runs.
func TestJoinSetPolicyClose(t *testing.T) {
	c := open(t, newConfig(t))
	l, g := join(t, c, "a", netproto.Public())
	g.say(t, "hello", "public hello")
	if g.given != 1 {
		t.Errorf("it was given %d frame sockets", g.given)
	}
	if err := l.Set(t.Context(), Setting{Policy: netproto.Policy{Mode: netproto.ModeNone}}); err != nil {
		t.Fatal(err)
	}
	g.say(t, "hello", "none hello")
	if _, err := l.Stats(t.Context()); err != nil {
		t.Error(err)
	}
	l.Close()
	l.Close()
	if _, err := c.Totals(t.Context()); err != nil { // answered after the Detach
		t.Fatal(err)
	}
	g.ended(t, "the frame socket of a closed link")
}

// Who joins a sandbox again, as a rollback does, resets what it had; closing the earlier link
// leaves the new one alone.
func TestJoinAgain(t *testing.T) {
	c := open(t, newConfig(t))
	first, old := join(t, c, "a", netproto.Public())
	old.say(t, "1", "public 1")
	_, g := join(t, c, "a", netproto.Policy{Mode: netproto.ModeOpen})
	g.say(t, "2", "open 2")
	first.Close()
	g.say(t, "3", "open 3")
	old.ended(t, "the earlier frame socket")
}

// Many sandboxes joined while forkd-net dies again and again all have their network and policy in
// the end.
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
		if pid(t, c) == was || c.Restarts() != uint64(round+1) {
			t.Errorf("round %d: process %d after %d, %d restarts", round, c.PID(), was, c.Restarts())
		}
	}
}

// A VM that is being restored while forkd-net dies is joined to the next one by the frame socket
// that it is being given.
func TestForkdNetDiesDuringAFork(t *testing.T) {
	c := open(t, newConfig(t))
	was := pid(t, c)
	g := &guest{}
	l, vmm, err := c.Join("a", Default(), g.give)
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
	_ = g.give(vmm)
	vmm.Close()
	l.Ready()
	g.say(t, "x", "public x")
	if g.given != 1 {
		t.Errorf("it was given %d frame sockets", g.given)
	}
}

// A forkd-net that dies of a request, or does not answer one, is replaced, and that request is not
// its successor's end.
func TestForkdNetThatMisbehaves(t *testing.T) {
	for _, id := range []string{vmfake.NetDies, vmfake.NetHangs} {
		t.Run(id, func(t *testing.T) {
			cfg := newConfig(t)
			cfg.patience = 300 * time.Millisecond
			c := open(t, cfg)
			_, g := join(t, c, "good", netproto.Public())
			g.say(t, "x", "public x")
			was := pid(t, c)
			l, vmm, err := c.Join(id, Default(), g.give)
			if err != nil {
				t.Fatal(err)
			}
			vmm.Close()
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

// The next daemon finds forkd-net and leaves the connections of the sandboxes it takes over alone.
// Others go.
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
	l := second.Adopt("kept", Setting{Policy: netproto.Policy{Mode: netproto.ModeOpen}}, kept.give)
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

// A forkd-net of another build is replaced, and with it what its sandboxes had.
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
	l := second.Adopt("a", Default(), g.give)
	g.say(t, "y", "public y")
	if second.PID() == was || g.given != 2 {
		t.Errorf("process %d after %d; %d frame sockets", second.PID(), was, g.given)
	}
	if err := syscall.Kill(was, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the other build: %v", err)
	}
	l.Close()
}

// forkd-net has a bound of memory of its own, where the host can, and goes before the daemon.
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

// A forkd-net that nobody needs ends with the daemon.
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

func TestNobodyIsJoinedWithoutAClient(t *testing.T) {
	var c *Client
	l, vmm, err := c.Join("a", Default(), nil)
	if l != nil || vmm != nil || err != nil {
		t.Error(l, vmm, err)
	}
	l.Ready()
	if err := l.Set(t.Context(), Default()); err != nil {
		t.Error(err)
	}
	if _, err := l.Stats(t.Context()); !errors.Is(err, ErrDown) {
		t.Error(err)
	}
	l.Close()
	c.Forget()
	c.Close()
	if c.PID() != 0 || c.Restarts() != 0 || c.ReopenLog() != nil {
		t.Error("a nil client does something")
	}
}

// The flow log is forkd-net's to write, and is another file after it was renamed and opened again.
func TestFlowLog(t *testing.T) {
	cfg := newConfig(t)
	cfg.FlowLog = filepath.Join(t.TempDir(), "flows")
	c := open(t, cfg)
	pid(t, c)
	sync := func() {
		if _, err := c.Totals(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	sync()
	if err := os.Rename(cfg.FlowLog, cfg.FlowLog+".1"); err != nil {
		t.Fatal(err)
	}
	if err := c.ReopenLog(); err != nil {
		t.Fatal(err)
	}
	sync()
	for _, name := range []string{cfg.FlowLog, cfg.FlowLog + ".1"} {
		if text, err := os.ReadFile(name); err != nil || string(text) != "configured\n" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}

func TestParseResolvConf(t *testing.T) {
	text := "# comment\nsearch a.b\nnameserver 127.0.0.53\nnameserver\nnameserver x\n nameserver fe80::1%eth0 # y\n" +
		"nameserver 1.1.1.1\nnameserver 8.8.8.8\n" + strings.Repeat("x", 100<<10)
	want := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.53:53"), netip.MustParseAddrPort("[fe80::1%eth0]:53"),
		netip.MustParseAddrPort("1.1.1.1:53")}
	if got := parseResolvConf([]byte(text)); !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
	if got := parseResolvConf(nil); got != nil {
		t.Errorf("%v", got)
	}
}

// The host's own addresses are all it has.
func TestHostConfig(t *testing.T) {
	own := hostConfig(nil, Proxy{}, netproto.Config{}).Own
	if !reflect.DeepEqual(hostConfig([]netip.AddrPort{netip.MustParseAddrPort("9.9.9.9:53")}, Proxy{}, netproto.Config{}).Resolvers,
		[]netip.AddrPort{netip.MustParseAddrPort("9.9.9.9:53")}) {
		t.Error("a resolver that was given is not used")
	}
	for _, a := range own {
		if a == netip.MustParseAddr("127.0.0.1") {
			return
		}
	}
	t.Errorf("127.0.0.1 is not among %v", own)
}

// An address that the host is given is noticed. The host is a network namespace of this test's
// thread.
func TestAddressChanges(t *testing.T) {
	runtime.LockOSThread() // it ends with the test, and the namespace with it
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		t.Skipf("no network namespace can be made: %v", err)
	}
	changed, err := addressChanges(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	lo.SetUint16(unix.IFF_UP) // which gives it 127.0.0.1
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	case <-time.After(patience):
		t.Error("the new address was not noticed")
	}
}
