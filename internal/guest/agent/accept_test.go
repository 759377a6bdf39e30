package agent

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"
)

// failing is a listener whose Accept returns the errors one after another. After the last error,
// the listener is closed.
type failing struct {
	net.Listener
	errs []error
}

func (l *failing) Accept() (net.Conn, error) {
	if len(l.errs) == 0 {
		return nil, net.ErrClosed
	}
	err := l.errs[0]
	l.errs = l.errs[1:]
	return nil, err
}

func TestAcceptGoesOn(t *testing.T) {
	// Package vsock wraps its errors in the same way.
	wrapped := &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", unix.ECONNABORTED)}
	l := &failing{errs: []error{wrapped, unix.ENOMEM, unix.EMFILE}}
	if _, err := (patient{l}).Accept(); !errors.Is(err, net.ErrClosed) || len(l.errs) > 0 {
		t.Errorf("%v, %d errors left", err, len(l.errs))
	}
	l = &failing{errs: []error{unix.EINVAL, unix.ENOMEM}}
	if _, err := (patient{l}).Accept(); !errors.Is(err, unix.EINVAL) || len(l.errs) != 1 {
		t.Errorf("an error that does not pass: %v", err)
	}
}

// peer is a connection whose other end has the given address.
type peer struct {
	net.Conn
	addr   net.Addr
	closed bool
}

func (p *peer) RemoteAddr() net.Addr { return p.addr }
func (p *peer) Close() error         { p.closed = true; return nil }

// peers is a listener that accepts each of the connections once.
type peers struct {
	net.Listener
	conns []*peer
}

func (l *peers) Accept() (net.Conn, error) {
	if len(l.conns) == 0 {
		return nil, net.ErrClosed
	}
	conn := l.conns[0]
	l.conns = l.conns[1:]
	return conn, nil
}

// Processes of the guest cannot call the agent through a loopback device for vsock.
func TestOnlyTheHostConnects(t *testing.T) {
	own, loopback := &peer{addr: &vsock.Addr{ContextID: 5}}, &peer{addr: &vsock.Addr{ContextID: unix.VMADDR_CID_LOCAL}}
	other, host := &peer{addr: &net.UnixAddr{}}, &peer{addr: &vsock.Addr{ContextID: unix.VMADDR_CID_HOST, Port: 9}}
	l := fromHost{&peers{conns: []*peer{own, loopback, other, host}}}
	if conn, err := l.Accept(); conn != net.Conn(host) || err != nil {
		t.Errorf("accepted %v, %v", conn, err)
	}
	if !own.closed || !loopback.closed || !other.closed || host.closed {
		t.Errorf("closed: %t, %t, %t, %t", own.closed, loopback.closed, other.closed, host.closed)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// The fork port closes connections that isPeer refuses, and accepts the next connection.
func TestForkPortAcceptsItsPeerOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "port")
	p, err := listenForks(unix.AF_UNIX, &unix.SockaddrUnix{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var conns [2]net.Conn
	for n := range conns {
		if conns[n], err = net.Dial("unix", path); err != nil {
			t.Fatal(err)
		}
		defer conns[n].Close()
	}
	seen := 0
	p.isPeer = func(conn int) bool {
		if isHost(conn) {
			t.Error("a unix socket is the host")
		}
		seen++
		return seen == 2
	}
	conn, err := p.accept()
	if err != nil || seen != 2 {
		t.Fatalf("%d connections seen, %v", seen, err)
	}
	defer unix.Close(conn)
	if _, err := conns[0].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the refused connection: %v", err)
	}
	if _, err := unix.Write(conn, []byte("x")); err != nil {
		t.Error(err)
	}
	if n, err := conns[1].Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("the accepted connection: %d, %v", n, err)
	}
}
