// Package conlog follows the serial console of a sandbox through all of its VMs.
//
// It reads the rings that VMMs write. Its users say which VM a sandbox has.
package conlog

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/forkd/forkd/internal/format/console"
)

// Log follows the console of a sandbox until the sandbox ends, through all of its VMs. A suspended
// sandbox is silent, and its log continues when it is resumed. Following is not use: it neither
// wakes a sandbox nor keeps it awake. A Log has one caller at a time.
type Log struct {
	screen func() Screen
	vm     any      // whose console is read; nil: none so far
	ring   *os.File // of vm; nil: the VM is gone
	seen   uint64   // bytes of ring read so far
}

// Screen is the present place of a sandbox's console.
type Screen struct {
	VM    any                      // identifies the VM that writes it; nil: none
	Open  func() (*os.File, error) // opens the ring that VM writes
	Ended bool                     // no more output will follow
	Last  console.Text             // if Ended: the last output, of a VM that is gone
}

// New returns a log of a sandbox, at its beginning. The caller closes it. screen returns a
// consistent view of the console's place.
func New(screen func() Screen) *Log { return &Log{screen: screen} }

// logInterval is how often a ring is polled. Its writer notifies no one, so that following adds no
// cost to a guest's output. A poll reads 8 bytes.
const logInterval = 200 * time.Millisecond

// Close stops following.
func (l *Log) Close() {
	l.ring.Close() // an error if there is none
}

// Begin returns the present content of the console. It is called before Next, which continues after
// it.
func (l *Log) Begin() (console.Text, error) {
	text, _, err := l.look()
	l.seen = text.Written
	return text, err
}

// Next waits for output, and returns it with the number of bytes before it that were overwritten
// unread. The error is io.EOF when the sandbox has ended and all of its output was returned, or the
// error of ctx.
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

// look returns the content of the console if it changed since the last look. ended says that no
// more output follows.
func (l *Log) look() (text console.Text, ended bool, err error) {
	s := l.screen() // before reading the ring, so that all output of an ended VM is read
	ended = s.Ended
	text, err = l.read()
	if err != nil || text.Written > l.seen || s.VM == nil || s.VM == l.vm {
		return text, ended, err
	}
	l.ring.Close() // of the previous VM, whose output is complete; an error if there is none
	l.vm, l.seen = s.VM, 0
	l.ring, err = s.Open()
	switch {
	case errors.Is(err, os.ErrNotExist) && ended:
		return s.Last, ended, nil
	case errors.Is(err, os.ErrNotExist): // the VM is just ending
		l.vm = nil
		return text, false, nil
	case err != nil:
		return text, false, err
	}
	text, err = l.read()
	return text, ended, err
}

// read returns the content of the ring, if there is more than was seen before.
func (l *Log) read() (text console.Text, err error) {
	if l.ring == nil {
		return text, nil
	}
	if text.Written, err = console.Written(l.ring); err != nil || text.Written == l.seen {
		return text, err
	}
	return console.Tail(l.ring)
}
