package net

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/net/inspect"
	"github.com/forkd/forkd/internal/net/stack"
	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// server holds the sandboxes that present and former daemons have attached.
type server struct {
	host       *stack.Host
	idle       *poller // watches the frame sockets of sandboxes without a stack
	loneliness time.Duration
	lonely     chan struct{}  // receives a value when the process should exit, see loneliness
	past       stack.Counters // sum of the counters of removed sandboxes

	mu        sync.Mutex
	sandboxes map[string]*sandbox
	waiting   map[int]*sandbox // sandboxes without a stack, by frame socket
	daemons   int
	freed     bool        // whether a stack was freed since the last sweep
	alone     *time.Timer // runs while there is neither a daemon nor a sandbox
}

// sandbox is the state of one sandbox. It is guarded by the server's mu.
type sandbox struct {
	netproto.Attach
	fd       int // frame socket; when the stack is created, it takes ownership of the socket
	counters *stack.Counters
	stack    *stack.Stack // nil until the guest sends a frame that needs one
}

func newServer(host *stack.Host, loneliness time.Duration) (*server, error) {
	idle, err := newPoller()
	if err != nil {
		return nil, err
	}
	s := &server{host: host, idle: idle, sandboxes: map[string]*sandbox{}, waiting: map[int]*sandbox{},
		loneliness: loneliness, lonely: make(chan struct{}, 1)}
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

// If there is neither a daemon nor a sandbox, companyLocked restarts the timer that makes the
// process exit. If there is a daemon or a sandbox, it stops this timer.
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

// detachLocked removes a sandbox and closes its stack. It does nothing if b is nil or was already
// removed.
func (s *server) detachLocked(b *sandbox) {
	if b == nil || s.sandboxes[b.ID] != b {
		return
	}
	delete(s.sandboxes, b.ID)
	s.companyLocked()
	if b.stack == nil {
		s.idle.remove(b.fd)
		delete(s.waiting, b.fd)
		_ = unix.Close(b.fd)
		return
	}
	// Close runs in a goroutine, because it waits for the tasks of the stack, and other requests
	// must not wait for these tasks.
	go func() {
		b.stack.Close()
		s.past.Add(b.counters)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.freed = true
	}()
}

// wake is called when the frame socket of a sandbox without a stack has frames, or when the
// socket's peer has hung up.
func (s *server) wake(fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.waiting[fd]; b != nil {
		s.wakeLocked(b)
	}
}

// wakeLocked drops frames that need no stack, and creates a stack if a frame needs one. One
// goroutine does this for all sandboxes. So if a guest has sent as many useless frames as the
// constant patience permits, wakeLocked also creates a stack. The stack limits the rate of the
// guest's frames.
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
		_, _, _ = unix.Recvfrom(b.fd, head[:], unix.MSG_DONTWAIT) // drop the message, which MSG_PEEK has left in the socket
		b.counters.Dropped.Add(1)
	}
}

// startLocked creates a sandbox's stack.
func (s *server) startLocked(b *sandbox) {
	s.idle.remove(b.fd)
	delete(s.waiting, b.fd)
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

// sweep periodically ends idle flows. It also returns the memory of closed stacks to the host,
// because Go returns memory late in a mostly idle process.
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
		s.host.SweepEnds()
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
