// Package conlog follows the serial console of a sandbox through all of its VMs.
//
// It reads the rings that VMMs write. Which VM a sandbox has is for its users to say.
package conlog

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/forkd/forkd/internal/format/console"
)

// Log follows the console of a sandbox until that ends, through all of its VMs: a suspended sandbox
// says nothing, and goes on when it is brought back. To follow is not to use: it neither wakes a
// sandbox nor keeps it awake. A Log has one caller at a time.
type Log struct {
	screen func() Screen
	vm     any      // whose console is read; nil: none was seen yet
	ring   *os.File // of vm; nil: it has gone
	seen   uint64   // bytes of it
}

// Screen is where the console of a sandbox is now.
type Screen struct {
	VM    any                      // that writes it, by which a VM is told from the one before it; nil: none
	Open  func() (*os.File, error) // opens the ring that VM writes
	Ended bool                     // nothing will be written after this
	Last  console.Text             // if Ended: what was written last, by a VM that has gone
}

// New returns a log of a sandbox, at its beginning, which the caller closes. screen returns where the
// console is, in one look.
func New(screen func() Screen) *Log { return &Log{screen: screen} }

// logInterval is how often a ring is looked at. Who writes to it tells nobody: output costs a guest
// no more for being followed. A look reads 8 bytes.
const logInterval = 200 * time.Millisecond

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
	s := l.screen() // before the look: of one that has ended all is there
	ended = s.Ended
	text, err = l.read()
	if err != nil || text.Written > l.seen || s.VM == nil || s.VM == l.vm {
		return text, ended, err
	}
	l.ring.Close() // of the VM before, which has said all; an error, where there is none
	l.vm, l.seen = s.VM, 0
	l.ring, err = s.Open()
	switch {
	case errors.Is(err, os.ErrNotExist) && ended:
		return s.Last, ended, nil
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
