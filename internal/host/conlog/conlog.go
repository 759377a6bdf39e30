// Package conlog reads the serial console of a sandbox while a VMM writes it. When the sandbox gets
// another VM, reading continues with that VM's console.
//
// Each VMM writes the console to a ring, which is a file of fixed size (package console). The
// caller provides a function that returns the sandbox's present VM.
package conlog

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/forkd/forkd/internal/format/console"
)

// Log follows the console of a sandbox, through all of its VMs, until the sandbox ends. While the
// sandbox is suspended, there is no output; when the sandbox is resumed, the log continues.
// Following the console does not count as use of the sandbox: it does not resume a sandbox, and
// does not prevent its suspension. A Log must not be used concurrently.
type Log struct {
	screen func() Screen
	vm     any      // Screen.VM of the console that is being read; nil: no console yet
	ring   *os.File // console ring of vm; nil: no VM yet, or vm has no ring any more
	seen   uint64   // number of bytes of the ring that were read so far
}

// Screen describes where the sandbox's console is at the moment.
type Screen struct {
	VM    any                      // identifies the VM that writes the console; nil: there is none
	Open  func() (*os.File, error) // opens that VM's ring
	Ended bool                     // the sandbox has ended, so no more output will follow
	Last  console.Text             // the last output, if Ended
}

// New returns a log that begins with the oldest output. The caller must close it. All fields of a
// Screen that screen returns must describe the same moment.
func New(screen func() Screen) *Log { return &Log{screen: screen} }

// logInterval is how often a ring is read. The VMM does not notify readers, because readers must
// not slow down a guest's output. If there is no new output, a read costs 8 bytes.
const logInterval = 200 * time.Millisecond

func (l *Log) Close() {
	l.ring.Close() // only returns an error if l.ring is nil
}

// Begin returns the present content of the console. It may be called once, before the first call of
// Next. Next then returns only later output.
func (l *Log) Begin() (console.Text, error) {
	text, _, err := l.look()
	l.seen = text.Written
	return text, err
}

// Next waits for output and returns it. Next also returns the number of bytes before this output
// that were overwritten before Next could read them. The error is io.EOF when the sandbox has ended
// and Next has returned all of its output. If ctx ends before that, the error is the error of ctx.
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

// look returns the content of the console if the content has changed since the previous call. It
// also reports whether no more output will follow.
func (l *Log) look() (text console.Text, ended bool, err error) {
	s := l.screen() // before the ring is read, so that the ring of an ended VM has all its output
	ended = s.Ended
	text, err = l.read()
	if err != nil || text.Written > l.seen || s.VM == nil || s.VM == l.vm {
		return text, ended, err
	}
	l.ring.Close() // the output of the previous VM is complete
	l.vm, l.seen = s.VM, 0
	l.ring, err = s.Open()
	switch {
	case errors.Is(err, os.ErrNotExist) && ended:
		return s.Last, ended, nil
	case errors.Is(err, os.ErrNotExist): // the VM is about to end
		l.vm = nil
		return text, false, nil
	case err != nil:
		return text, false, err
	}
	text, err = l.read()
	return text, ended, err
}

// read returns the content of the ring if it has more bytes than l.seen.
func (l *Log) read() (text console.Text, err error) {
	if l.ring == nil {
		return text, nil
	}
	if text.Written, err = console.Written(l.ring); err != nil || text.Written == l.seen {
		return text, err
	}
	return console.Tail(l.ring)
}
