package net

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/net/inject"
	"github.com/forkd/forkd/internal/net/stack"
	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// donated holds the descriptors that were sent with a request. After the request, the descriptors
// that were not taken are closed.
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
	case netproto.KindEffects:
		return s.effects(r, w)
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

// maxRoots is the maximum size of the root certificates in bytes. The certificates of a
// distribution have 220 KiB.
const maxRoots = 16 << 20

// trust handles a Trust request, which sets two things: the CA with which forkd-net acts as a
// server towards guests, and the root certificates with which forkd-net verifies real servers.
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

// maxHeld is the maximum number of frame sockets of one VM that this process has closed and from
// which the VM has not read all data. A working VM has no such socket, because it closes its end of
// the previous socket before it uses a new one. The kernel counts the data in each such socket, up
// to 2 * frame.BufferBytes, as memory of this process.
const maxHeld = 1

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
	if held := s.host.Held(m.ID); held > maxHeld {
		_ = unix.Close(fd)
		return &netproto.Error{Code: netproto.CodeHeld, Text: fmt.Sprintf("the VM holds %d earlier frame sockets, which it "+
			"neither reads nor closes", held)}
	}
	b := &sandbox{Attach: m, fd: fd, counters: &stack.Counters{}}
	if err := s.idle.add(fd); err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("frame socket of %s: %w", m.ID, err)
	}
	s.sandboxes[m.ID], s.waiting[fd] = b, b
	s.companyLocked()
	return nil
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
	if b.stack != nil {
		stats.Flows = b.stack.Flows()
	}
	stats.Append(w)
	return nil
}

// effects writes the list of a sandbox's held requests. A sandbox without a stack has no such
// requests.
func (s *server) effects(r *codec.Reader, w *codec.Writer) error {
	var m netproto.ID
	if err := parse(r, &m); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.sandboxes[m.ID]
	if b == nil {
		return unknown(m.ID)
	}
	var list netproto.Effects
	if b.stack != nil {
		list = b.stack.Effects()
	}
	list.Append(w)
	return nil
}

// sumLocked returns the sum of all sandboxes' counters.
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
