package netclient

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/frame/frametest"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// patience is how long a test waits for an expected event.
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

// guest is the VM of a link. It uses the frame socket that was connected last.
type guest struct {
	mu      sync.Mutex
	waiting *os.File // connected, but not used yet; nil: none
	fd      int
	given   int
	moves   int
	answers answers
	asked   int // number of calls of SetNet

	keeps bool  // whether the VM keeps the frame sockets that it has used
	kept  []int // frame sockets that the VM keeps

	condemned error
}

// DialFrames implements VM.
func (g *guest) DialFrames() (*os.File, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting != nil {
		_ = g.waiting.Close()
	}
	var other *os.File
	var err error
	g.waiting, other, err = frametest.Pair()
	return other, err
}

// SetNet implements VM. Like a VM, it changes nothing if no frame socket waits.
func (g *guest) SetNet(ctx context.Context, _ bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked++
	switch {
	case g.answers == withNothing:
		g.mu.Unlock()
		<-ctx.Done()
		g.mu.Lock()
		return ctx.Err()
	case g.answers == withAnError:
		return errors.New("it refuses")
	case g.waiting == nil:
		return nil
	}
	fd, err := unix.Dup(int(g.waiting.Fd()))
	_ = g.waiting.Close()
	g.waiting = nil
	if err != nil {
		return err
	}
	if g.keeps && g.fd != 0 {
		g.kept = append(g.kept, g.fd)
	} else if g.fd != 0 {
		_ = unix.Close(g.fd)
	}
	g.fd, g.given = fd, g.given+1
	return nil
}

// Condemn implements VM.
func (g *guest) Condemn(why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.condemned = why
}

// moved is called when the VM has another network stack.
func (g *guest) moved() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.moves++
}

// answers is the way in which a guest responds to SetNet.
type answers int

const (
	withSuccess answers = iota
	withAnError
	withNothing
)

func (g *guest) answer(a answers) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answers = a
}

// g.counts() returns how often SetNet was called, and how often the VM has got another network
// stack.
func (g *guest) counts() (asked, moves int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked, g.moves
}

// say sends a frame and waits for the answer. If the VM gets another frame socket, it sends the
// frame again.
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

// ended waits until the peer has closed the frame socket. It skips answers to frames that were sent
// more than once.
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

// join connects a VM.
func join(t *testing.T, c *Client, id string, p netproto.Policy) (*Link, *guest) {
	t.Helper()
	g := &guest{}
	l, err := c.Join(id, Setting{Policy: p}, g, g.moved)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.SetNet(t.Context(), true); err != nil { // as a restore with a network does
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

// If a sandbox sends a frame before forkd-net runs, the frame is not lost. The policy can be
// changed while the sandbox runs.
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
	// forkd-net answers requests in order. So Detach, which Close has sent, is done when Totals returns.
	if _, err := c.Totals(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.ended(t, "the frame socket of a closed link")
}

// Joining a sandbox again, as a rollback does, resets its connections. Closing the earlier link
// afterwards does not affect the new link.
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

func TestNobodyIsJoinedWithoutAClient(t *testing.T) {
	var c *Client
	l, err := c.Join("a", Default(), nil, nil)
	if l != nil || err != nil {
		t.Error(l, err)
	}
	l.Ready()
	if err := l.Set(t.Context(), Default()); err != nil {
		t.Error(err)
	}
	if s, err := l.Stats(t.Context()); err != nil || s.Active {
		t.Error(err)
	}
	l.Close()
	c.Forget()
	c.Close()
	if c.PID() != 0 || c.Restarts() != 0 || c.ReopenLog() != nil {
		t.Error("a nil client does something")
	}
}

// forkd-net writes the flow log. If the file is renamed, forkd-net writes to a new file after
// ReopenLog.
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
