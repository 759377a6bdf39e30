package sandbox

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// Console returns the last output of a sandbox's serial console, also of an exited one.
func (m *Manager) Console(id string) (console.Text, error) {
	s, err := m.Get(id)
	if err != nil {
		return console.Text{}, err
	}
	state, v, last := s.screen()
	if state == Exited || v == nil {
		return last, nil
	}
	return vmpool.Console(m.cfg.VMMs, v.dir)
}

// screen returns the VM that writes the console of s, if it has one, and of an exited s what was
// written last.
func (s *Sandbox) screen() (State, *liveVM, console.Text) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.live, s.console
}

// Log follows the console of a sandbox until that ends, through all of its VMs: a suspended sandbox
// says nothing, and goes on when it is brought back. To follow is not to use: it neither wakes a
// sandbox nor keeps it awake. A Log has one caller at a time.
type Log struct {
	m    *Manager
	s    *Sandbox
	vm   *liveVM  // whose console is read; nil: none was seen yet
	ring *os.File // of vm; nil: it has gone
	seen uint64   // bytes of it
}

// logInterval is how often a ring is looked at. Who writes to it tells nobody: output costs a guest
// no more for being followed. A look reads 8 bytes.
const logInterval = 200 * time.Millisecond

// Follow returns a log of a sandbox, at its beginning, which the caller closes.
func (m *Manager) Follow(id string) (*Log, error) {
	s, err := m.Get(id)
	if err != nil {
		return nil, err
	}
	return &Log{m: m, s: s}, nil
}

// Close ends the following.
func (l *Log) Close() {
	l.ring.Close() // an error, where there is none
}

// Begin returns what the console holds now. It comes before Next, which goes on behind it.
func (l *Log) Begin() (console.Text, error) {
	text, _, err := l.look()
	l.seen = text.Written
	return text, err
}

// Next waits for output and returns it, and how many bytes before it were overwritten unread. The
// error is io.EOF when the sandbox has ended and all of its output was returned, or that of ctx.
func (l *Log) Next(ctx context.Context) (p []byte, lost uint64, err error) {
	tick := time.NewTicker(logInterval)
	defer tick.Stop()
	for {
		text, ended, err := l.look()
		if err != nil {
			return nil, 0, err
		}
		if p, lost = text.Behind(l.seen); len(p) > 0 {
			l.seen = text.Written
			return p, lost, nil
		}
		if ended {
			return nil, 0, io.EOF
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
}

// look returns what the console holds, if something has come since the last look. ended says that
// nothing will come after it.
func (l *Log) look() (text console.Text, ended bool, err error) {
	state, vm, last := l.s.screen() // before the look: of one that has ended all is there
	ended = state == Exited || state == Stopping
	text, err = l.read()
	if err != nil || text.Written > l.seen || vm == nil || vm == l.vm {
		return text, ended, err
	}
	l.ring.Close() // of the VM before, which has said all; an error, where there is none
	l.vm, l.seen = vm, 0
	l.ring, err = l.m.cfg.VMMs.OpenConsole(vm.dir)
	switch {
	case errors.Is(err, os.ErrNotExist) && ended:
		return last, ended, nil
	case errors.Is(err, os.ErrNotExist): // it ends just now
		l.vm = nil
		return text, false, nil
	case err != nil:
		return text, false, err
	}
	text, err = l.read()
	return text, ended, err
}

// read returns what the ring holds, if that is more than was seen.
func (l *Log) read() (text console.Text, err error) {
	if l.ring == nil {
		return text, nil
	}
	if text.Written, err = console.Written(l.ring); err != nil || text.Written == l.seen {
		return text, err
	}
	return console.Tail(l.ring)
}
