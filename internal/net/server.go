package net

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/net/inject"
	"github.com/forkd/forkd/internal/net/inspect"
	"github.com/forkd/forkd/internal/net/stack"
	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// server has the sandboxes of all daemons that there were.
type server struct {
	host       *stack.Host
	idle       *poller // of the sandboxes whose guests have not sent anything
	loneliness time.Duration
	lonely     chan struct{}  // has something in it when there has been neither daemon nor sandbox for loneliness
	past       stack.Counters // of sandboxes that are gone

	mu        sync.Mutex
	sandboxes map[string]*sandbox
	daemons   int
	freed     bool        // a stack was, since the last look
	alone     *time.Timer // runs while there is neither daemon nor sandbox
}

// sandbox is what is known of one. It is guarded by the server's mu.
type sandbox struct {
	netproto.Attach
	fd       int // the frame socket, until there is a stack
	counters *stack.Counters
	stack    *stack.Stack // nil until the guest's first frame that needs one
}

func newServer(host *stack.Host, loneliness time.Duration) (*server, error) {
	idle, err := newPoller()
	if err != nil {
		return nil, err
	}
	s := &server{host: host, idle: idle, sandboxes: map[string]*sandbox{}, loneliness: loneliness, lonely: make(chan struct{}, 1)}
	s.alone = time.AfterFunc(loneliness, func() {
		select {
		case s.lonely <- struct{}{}:
		default:
		}
	})
	go idle.run(s.wake)
	go s.sweep()
	return s, nil
}

// companyLocked stops the clock that ends the process, or starts it again where nobody is left.
func (s *server) companyLocked() {
	if s.daemons > 0 || len(s.sandboxes) > 0 {
		s.alone.Stop()
	} else {
		s.alone.Reset(s.loneliness)
	}
}

// serve answers one daemon until it hangs up.
func (s *server) serve(conn *ctlsock.Conn) {
	s.count(1)
	defer s.count(-1)
	defer conn.Close()
	for {
		kind, body, fds, err := conn.Receive()
		if err != nil {
			return
		}
		var w codec.Writer
		files := &donated{fds}
		err = s.handle(kind, codec.NewReader(body), files, &w)
		files.closeRest()
		reply := netproto.KindOK
		if err != nil {
			reply, w = netproto.KindError, codec.Writer{}
			known, ok := errors.AsType[*netproto.Error](err)
			if !ok {
				known = &netproto.Error{Code: netproto.CodeInternal, Text: err.Error()}
			}
			known.Append(&w)
		}
		if conn.Send(reply, w.Bytes()) != nil {
			return
		}
	}
}

func (s *server) count(daemons int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.daemons += daemons
	s.companyLocked()
}

// donated are the descriptors of one request; those that are not taken are closed with it.
type donated struct{ fds []int }

func (d *donated) take() (int, bool) {
	if len(d.fds) == 0 {
		return -1, false
	}
	fd := d.fds[0]
	d.fds = d.fds[1:]
	return fd, true
}

func (d *donated) closeRest() { ctlsock.CloseAll(d.fds) }

type message interface{ Parse(*codec.Reader) error }

func parse(r *codec.Reader, m message) error {
	if err := cmp.Or(m.Parse(r), r.Done()); err != nil {
		return &netproto.Error{Code: netproto.CodeInvalid, Text: fmt.Sprintf("parse request: %v", err)}
	}
	return nil
}

// handle carries out one request and writes its result.
func (s *server) handle(kind netproto.Kind, r *codec.Reader, files *donated, w *codec.Writer) error {
	switch kind {
	case netproto.KindHello:
		var m netproto.Hello
		if err := parse(r, &m); err != nil {
			return err
		}
		if m.Version != netproto.Version {
			return &netproto.Error{Code: netproto.CodeVersion, Text: fmt.Sprintf("daemon speaks network protocol %d, this "+
				"forkd-net %d: use the two of one build", m.Version, netproto.Version)}
		}
		(&netproto.Welcome{Version: netproto.Version, PID: uint32(os.Getpid())}).Append(w)
		return nil
	case netproto.KindConfig:
		return s.config(r, files)
	case netproto.KindTrust:
		return s.trust(r, files)
	case netproto.KindAttach:
		return s.attach(r, files)
	case netproto.KindDetach:
		var m netproto.ID
		if err := parse(r, &m); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.detachLocked(s.sandboxes[m.ID])
		return nil
	case netproto.KindSetPolicy:
		return s.setPolicy(r)
	case netproto.KindStats:
		return s.stats(r, w)
	case netproto.KindList:
		s.mu.Lock()
		defer s.mu.Unlock()
		(&netproto.List{IDs: slices.Collect(maps.Keys(s.sandboxes))}).Append(w)
		return nil
	}
	return &netproto.Error{Code: netproto.CodeInvalid, Text: fmt.Sprintf("unknown request %d", kind)}
}

func (s *server) config(r *codec.Reader, files *donated) error {
	var m netproto.Config
	if err := parse(r, &m); err != nil {
		return err
	}
	s.host.Resolver.Set(m.Resolvers)
	s.host.SetProxy(m.Proxy)
	s.host.SetOwn(m.Own)
	for _, t := range s.stacks() {
		t.Redecide()
	}
	if fd, ok := files.take(); ok {
		s.host.Log.Set(os.NewFile(uintptr(fd), "flow log"))
	} else {
		s.host.Log.Set(nil)
	}
	return nil
}

// maxRoots bounds the roots of servers in bytes. Those of a distribution are 220 KiB.
const maxRoots = 16 << 20

// trust takes the authority for secrets and the roots of servers.
func (s *server) trust(r *codec.Reader, files *donated) error {
	var m netproto.Trust
	if err := parse(r, &m); err != nil {
		return err
	}
	var roots []byte
	if fd, ok := files.take(); ok {
		file := os.NewFile(uintptr(fd), "roots")
		var err error
		roots, err = io.ReadAll(io.LimitReader(file, maxRoots))
		if err = errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	t, err := inject.NewTrust(m.Certificate, []byte(m.Key), roots)
	if err != nil {
		return &netproto.Error{Code: netproto.CodeInvalid, Text: err.Error()}
	}
	s.host.SetTrust(t)
	return nil
}

func (s *server) attach(r *codec.Reader, files *donated) error {
	var m netproto.Attach
	if err := parse(r, &m); err != nil {
		return err
	}
	fd, ok := files.take()
	if !ok {
		return &netproto.Error{Code: netproto.CodeInvalid, Text: "attach wants a descriptor: the frame socket"}
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("frame socket of %s: %w", m.ID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.detachLocked(s.sandboxes[m.ID])
	b := &sandbox{Attach: m, fd: fd, counters: &stack.Counters{}}
	if err := s.idle.add(fd); err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("frame socket of %s: %w", m.ID, err)
	}
	s.sandboxes[m.ID] = b
	s.companyLocked()
	return nil
}

// detachLocked forgets a sandbox, if it is not nil, and ends its stack.
func (s *server) detachLocked(b *sandbox) {
	if b == nil || s.sandboxes[b.ID] != b {
		return
	}
	delete(s.sandboxes, b.ID)
	s.companyLocked()
	if b.stack == nil {
		s.idle.remove(b.fd)
		_ = unix.Close(b.fd)
		return
	}
	// In the background: it waits for the tasks of the stack, and others shall not wait for them.
	go func() {
		b.stack.Close()
		s.past.Add(b.counters)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.freed = true
	}()
}

func (s *server) setPolicy(r *codec.Reader) error {
	var m netproto.SetPolicy
	if err := parse(r, &m); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.sandboxes[m.ID]
	if b == nil {
		return unknown(m.ID)
	}
	b.Attach = netproto.Attach(m)
	if b.stack != nil {
		b.stack.SetPolicy(&m)
	}
	return nil
}

func unknown(id string) error {
	return &netproto.Error{Code: netproto.CodeUnknown, Text: fmt.Sprintf("no sandbox %s is attached", id)}
}

func (s *server) stats(r *codec.Reader, w *codec.Writer) error {
	var m netproto.ID
	if err := parse(r, &m); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.ID == "" {
		sum := s.sumLocked()
		sum.Append(w)
		return nil
	}
	b := s.sandboxes[m.ID]
	if b == nil {
		return unknown(m.ID)
	}
	stats := b.counters.Stats()
	stats.Append(w)
	return nil
}

// sumLocked adds up what all sandboxes have counted.
func (s *server) sumLocked() netproto.Stats {
	var sum stack.Counters
	sum.Add(&s.past)
	open, active := uint32(0), false
	for _, b := range s.sandboxes {
		sum.Add(b.counters)
		open += uint32(b.counters.Open.Load())
		active = active || b.stack != nil
	}
	stats := sum.Stats()
	stats.Open, stats.Active = open, active
	return stats
}

// wake is called where the frame socket of a sandbox without a stack has something to read: frames,
// or the end.
func (s *server) wake(fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.sandboxes {
		if b.stack != nil || b.fd != fd {
			continue
		}
		s.wakeLocked(b)
		return
	}
}

// wakeLocked reads what needs no stack. There is only so much of it: a guest that goes on gets a
// stack, which has a limit for what it takes, for this goroutine is that of all sandboxes.
func (s *server) wakeLocked(b *sandbox) {
	var head [inspect.WakeBytes]byte
	for {
		n, _, err := unix.Recvfrom(b.fd, head[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			return
		case err != nil || n == 0:
			s.detachLocked(b)
			return
		case inspect.Wakes(head[:n]) || b.counters.Dropped.Load() >= patience:
			s.startLocked(b)
			return
		}
		_, _, _ = unix.Recvfrom(b.fd, head[:], unix.MSG_DONTWAIT) // it was there a moment ago
		b.counters.Dropped.Add(1)
	}
}

// startLocked gives a sandbox its stack.
func (s *server) startLocked(b *sandbox) {
	s.idle.remove(b.fd)
	started, err := stack.New(s.host, os.NewFile(uintptr(b.fd), "frame socket"), &b.Attach, b.counters)
	if err != nil {
		fmt.Fprintf(os.Stderr, "forkd-net: %v\n", err)
		delete(s.sandboxes, b.ID)
		s.companyLocked()
		return
	}
	b.stack = started
	go func() {
		<-started.Ended()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.detachLocked(b)
	}()
}

// sweep ends idle flows from time to time, and gives memory of stacks that are gone back to the
// host: a process that has little to do collects its garbage seldom.
func (s *server) sweep() {
	for now := range time.Tick(sweepTime) {
		s.mu.Lock()
		freed := s.freed
		s.freed = false
		s.mu.Unlock()
		if freed {
			debug.FreeOSMemory()
		}
		for _, t := range s.stacks() {
			t.Sweep(now)
		}
	}
}

func (s *server) stacks() (stacks []*stack.Stack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.sandboxes {
		if b.stack != nil {
			stacks = append(stacks, b.stack)
		}
	}
	return stacks
}
