package net

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/jail/posture"
	"github.com/forkd/forkd/internal/net/guesttest"
	"github.com/forkd/forkd/internal/net/nettest"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// startProcess starts the test program as forkd-net, in its jail, with the variables env added to
// its environment. It returns the path of the control socket.
func startProcess(t *testing.T, env ...string) (path string, p *os.Process) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	listener, err := ctlsock.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(listener), "listener")
	defer file.Close()
	program, err := posture.TestProgram(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	jails, err := jail.New(jail.Options{})
	if err != nil {
		t.Fatal(err)
	}
	attr := os.ProcAttr{Dir: "/", Files: []*os.File{nil, nil, os.Stderr, file}, Env: append(os.Environ(), env...)}
	p, err = jails.Start(program, []string{asProcess}, attr, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	return path, p
}

// anonymous returns how much anonymous memory a process has in RAM, in KiB (proc_pid_status(5)).
func anonymous(t *testing.T, p *os.Process) (kib int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "RssAnon:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

// The memory of ended sandboxes is returned to the host.
func TestMemoryOfEndedStacksIsFreed(t *testing.T) {
	path, p := startProcess(t)
	d := connect(t, path)
	const sandboxes = 200
	var files []*os.File
	for i := range sandboxes {
		mine, theirs := guesttest.Pair(t)
		files = append(files, mine)
		d.attach(fmt.Sprint(i), theirs, netproto.Policy{Mode: netproto.ModeNone})
		if _, err := mine.Write(guesttest.Frame(guesttest.SYN(frame.Guest, web, 1024, 80))); err != nil {
			t.Fatal(err)
		}
		if _, err := mine.Read(make([]byte, 100)); err != nil { // fails when the connection is reset
			t.Fatal(err)
		}
	}
	full := anonymous(t, p)
	for _, f := range files {
		_ = f.Close()
	}
	waitFor(t, fmt.Sprintf("less than half of %d KiB", full), func() bool { return anonymous(t, p) < full/2 })
}

// If a VM neither reads nor closes its former frame sockets, it gets no new one: the data in these
// sockets counts as memory of forkd-net. If the VM closes its former frame socket, or reads all
// data from it, it gets a new one.
func TestVMThatHoldsItsSockets(t *testing.T) {
	path, _ := startProcess(t)
	d := connect(t, path)
	// attach attaches a sandbox whose guest then leaves an answer of forkd-net unread.
	attach := func(id string) (*os.File, error) {
		mine, theirs := guesttest.Pair(t)
		defer theirs.Close()
		_, err := d.request(netproto.KindAttach, &netproto.Attach{ID: id, Policy: netproto.Policy{Mode: netproto.ModeNone}},
			int(theirs.Fd()))
		if err != nil {
			mine.Close()
			return nil, err
		}
		if _, err := mine.Write(guesttest.Frame(guesttest.SYN(frame.Guest, web, 1024, 80))); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the connection is refused", func() bool {
			n, _, err := unix.Recvfrom(int(mine.Fd()), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
			return n > 0 && err == nil
		})
		return mine, nil
	}
	for range 3 * maxHeld {
		f, err := attach("honest")
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	var held []*os.File
	var err error
	for err == nil && len(held) < 100 {
		var f *os.File
		if f, err = attach("hostile"); err == nil {
			held = append(held, f)
			waitFor(t, "its stack", func() bool { return d.stats("hostile").Active })
		}
		d.must(netproto.KindDetach, &netproto.ID{ID: "hostile"}) // the stack closes its socket some time later
		time.Sleep(time.Millisecond)
	}
	if !netproto.IsCode(err, netproto.CodeHeld) || len(held) <= maxHeld {
		t.Fatalf("after %d held sockets: %v", len(held), err)
	}
	if _, err := attach("other"); err != nil {
		t.Errorf("another sandbox: %v", err)
	}
	for _, f := range held {
		defer f.Close()
		for p := make([]byte, frame.MaxMessage); ; {
			if n, _ := unix.Read(int(f.Fd()), p); n <= 0 {
				break
			}
		}
	}
	if _, err := attach("hostile"); err != nil {
		t.Errorf("after the VM has read all: %v", err)
	}
}

// When the daemon exits, forkd-net keeps the connections of its sandboxes. The next daemon can
// connect to forkd-net, and finds these sandboxes.
func TestProcessSurvivesItsDaemon(t *testing.T) {
	w := nettest.New(t, web)
	nettest.Serve(w.Listen(t, web+":80"), func(c net.Conn) { _, _ = io.Copy(c, c) })
	path, p := startProcess(t)
	d := connect(t, path)
	g, frames := guesttest.New(t)
	d.attach("sb-1", frames, netproto.Public())
	c, err := g.DialTCP(t.Context(), netip.MustParseAddrPort(web+":80"))
	if err != nil {
		t.Fatal(err)
	}
	_ = d.conn.Close()
	d = connect(t, path)
	if ids := d.list(); !reflect.DeepEqual(ids, []string{"sb-1"}) {
		t.Errorf("%q", ids)
	}
	if _, err := io.WriteString(c, "still"); err != nil {
		t.Fatal(err)
	}
	echo := make([]byte, 5)
	if _, err := io.ReadFull(c, echo); err != nil || string(echo) != "still" {
		t.Errorf("%q, %v", echo, err)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if state, err := p.Wait(); err != nil || state.Success() {
		t.Errorf("SIGTERM ended it without a trace: %v, %v", state, err)
	}
}
