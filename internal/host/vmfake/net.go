package vmfake

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// ServeNet must be called by TestMain. If a client has started the test binary as forkd-net,
// ServeNet runs a fake forkd-net and does not return. The fake answers requests like the real
// forkd-net. The fake returns every frame with a prefix: the mode of the sandbox's policy and a
// space. Once the fake has received the CA, it puts the values of the sandbox's secrets and the
// answer of its hold after the mode. The fake's list of effects has a request to each host of a
// hold.
func ServeNet() {
	if os.Args[0] != "forkd-net" {
		return
	}
	go endWithTest(os.Getppid())
	f := &fakeNet{sandboxes: make(map[string]*fakeSandbox)}
	for {
		conn, err := ctlsock.Accept(netproto.ListenerFD)
		if err != nil {
			os.Exit(2)
		}
		for f.serve(conn) == nil {
		}
		_ = conn.Close()
	}
}

// endWithTest exits when the test binary that started this process is gone. Without this function,
// the process would continue, because a forkd-net continues without its daemon.
func endWithTest(parent int) {
	for os.Getppid() == parent {
		time.Sleep(time.Second)
	}
	os.Exit(0)
}

type fakeNet struct {
	mu        sync.Mutex
	sandboxes map[string]*fakeSandbox
	configs   uint64
	trusted   bool
}

type fakeSandbox struct {
	fd     int
	policy netproto.Policy
	values string
	hold   netproto.Hold
}

// use applies a setting.
func (f *fakeNet) use(s *fakeSandbox, m *netproto.SetPolicy) {
	s.policy, s.hold, s.values = m.Policy, m.Hold, f.valuesOf(m.Secrets)
	if s.hold.On() && f.trusted {
		s.values += " " + s.hold.Answer.String()
	}
}

func (s *fakeSandbox) effects() netproto.Effects {
	m := netproto.Effects{Since: 1, Missed: 2}
	for i, host := range s.hold.Hosts {
		m.List = append(m.List, netproto.Effect{ID: uint64(i) + 1, Method: "POST", URL: "https://" + host.String() + "/",
			Body: []byte("body\x1b"), Outcome: netproto.OutcomeRefused})
	}
	return m
}

// valuesOf returns the values of a sandbox's secrets in the form in which they are inserted into
// frames.
func (f *fakeNet) valuesOf(secrets []netproto.Secret) (values string) {
	for _, s := range secrets {
		if f.trusted {
			values += " " + string(s.Value)
		}
	}
	return values
}

// Ids of sandboxes that ServeNet does not attach. Instead, ServeNet exits, hangs, or returns an
// error as for a VM that misbehaves.
const (
	NetDies  = "dies"
	NetHangs = "hangs"
	NetHeld  = "held" // the request fails with netproto.CodeHeld
)

func (f *fakeNet) serve(conn *ctlsock.Conn) error {
	kind, body, fds, err := conn.Receive()
	if err != nil {
		return err
	}
	r := codec.NewReader(body)
	var w codec.Writer
	f.mu.Lock()
	defer f.mu.Unlock()
	switch kind {
	case netproto.KindHello:
		(&netproto.Welcome{Version: netproto.Version, PID: uint32(os.Getpid())}).Append(&w)
	case netproto.KindConfig:
		f.configs++
		for _, fd := range fds {
			_, _ = unix.Write(fd, []byte("configured\n"))
		}
		ctlsock.CloseAll(fds)
	case netproto.KindTrust:
		var m netproto.Trust
		err = m.Parse(r)
		f.trusted = len(fds) == 1 && err == nil
		ctlsock.CloseAll(fds)
	case netproto.KindAttach:
		var m netproto.Attach
		err = m.Parse(r)
		switch m.ID {
		case NetDies:
			os.Exit(3)
		case NetHangs:
			select {}
		case NetHeld:
			ctlsock.CloseAll(fds)
			err = &netproto.Error{Code: netproto.CodeHeld, Text: "it holds sockets"}
		default:
			f.detach(m.ID)
			s := &fakeSandbox{fd: fds[0]}
			f.use(s, (*netproto.SetPolicy)(&m))
			f.sandboxes[m.ID] = s
			go f.echo(m.ID, s)
		}
	case netproto.KindDetach:
		var m netproto.ID
		err = m.Parse(r)
		f.detach(m.ID)
	case netproto.KindSetPolicy:
		var m netproto.SetPolicy
		err = m.Parse(r)
		if s := f.sandboxes[m.ID]; s != nil {
			f.use(s, &m)
		} else {
			err = &netproto.Error{Code: netproto.CodeUnknown, Text: "no such sandbox"}
		}
	case netproto.KindStats:
		var m netproto.ID
		if err = m.Parse(r); err == nil && m.ID != "" && f.sandboxes[m.ID] == nil {
			err = &netproto.Error{Code: netproto.CodeUnknown, Text: "no such sandbox"}
		}
		(&netproto.Stats{Connections: f.configs}).Append(&w)
	case netproto.KindEffects:
		var m netproto.ID
		err = m.Parse(r)
		if s := f.sandboxes[m.ID]; s != nil {
			e := s.effects()
			e.Append(&w)
		}
	case netproto.KindList:
		var list netproto.List
		for id := range f.sandboxes {
			list.IDs = append(list.IDs, id)
		}
		list.Append(&w)
	}
	if err == nil {
		return conn.Send(netproto.KindOK, w.Bytes())
	}
	var failed codec.Writer
	known, ok := errors.AsType[*netproto.Error](err)
	if !ok {
		known = &netproto.Error{Code: netproto.CodeInvalid, Text: err.Error()}
	}
	known.Append(&failed)
	return conn.Send(netproto.KindError, failed.Bytes())
}

func (f *fakeNet) detach(id string) {
	if s := f.sandboxes[id]; s != nil {
		delete(f.sandboxes, id)
		_ = unix.Shutdown(s.fd, unix.SHUT_RDWR)
	}
}

func (f *fakeNet) echo(id string, s *fakeSandbox) {
	_ = unix.SetNonblock(s.fd, false)
	buf := make([]byte, frame.MaxMessage)
	for {
		n, err := unix.Read(s.fd, buf)
		f.mu.Lock()
		if n <= 0 || err != nil {
			if f.sandboxes[id] == s {
				delete(f.sandboxes, id)
			}
			_ = unix.Close(s.fd) // under the lock, because other goroutines use s.fd, whose number may be reused
			f.mu.Unlock()
			return
		}
		mode := s.policy.Mode.String() + s.values
		f.mu.Unlock()
		_, _ = unix.Write(s.fd, append([]byte(mode+" "), buf[:n]...))
	}
}
