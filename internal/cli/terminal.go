package cli

import (
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/forkd/forkd/client"
)

// terminal is the one that this program runs in, lent to a process in a sandbox: what is typed goes
// there as it is, Ctrl-C too, and the process knows its size.
type terminal struct {
	restore func()
	resized chan os.Signal
	told    chan struct{} // closed when resize is called no more; nil if it never was
}

// openTerminal lends the terminal that input and output are, as far as they are one, until close. A
// nil input stays as it is.
func openTerminal(input io.Reader, output io.Writer, resize func(client.TTYSize)) (*terminal, error) {
	t := &terminal{restore: func() {}, resized: make(chan os.Signal, 1)}
	if f, ok := input.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		old, err := term.MakeRaw(int(f.Fd()))
		if err != nil {
			return nil, err
		}
		t.restore = func() { _ = term.Restore(int(f.Fd()), old) }
	}
	if !isTerminal(output) {
		return t, nil
	}
	signal.Notify(t.resized, syscall.SIGWINCH)
	t.told = make(chan struct{})
	go func() {
		defer close(t.told)
		for range t.resized {
			if size, ok := terminalSize(output); ok {
				resize(size)
			}
		}
	}()
	t.resized <- syscall.SIGWINCH // it may have changed since the process was started
	return t, nil
}

func (t *terminal) close() {
	signal.Stop(t.resized)
	close(t.resized)
	if t.told != nil {
		<-t.told // the caller may close the terminal's files now
	}
	t.restore()
}

func terminalSize(w io.Writer) (client.TTYSize, bool) {
	f, ok := fileOf(w)
	if !ok {
		return client.TTYSize{}, false
	}
	cols, rows, err := term.GetSize(int(f.Fd()))
	if err != nil || cols <= 0 || rows <= 0 {
		return client.TTYSize{}, false
	}
	return client.TTYSize{Cols: uint(cols), Rows: uint(rows)}, true
}

// The keys that leave a process to itself, as docker has them: Ctrl-P, Ctrl-Q.
const (
	firstDetachKey  = 'P' - '@'
	secondDetachKey = 'Q' - '@'
)

// detachKeys passes on what is typed, but for the two keys that detach. The first is held back
// until what follows is known.
type detachKeys struct {
	from   io.Reader
	detach func()
	held   bool
}

func (d *detachKeys) Read(p []byte) (int, error) {
	if len(p) < 2 { // room for one that was held back
		return 0, io.ErrShortBuffer
	}
	for {
		buf := make([]byte, len(p)-1)
		n, err := d.from.Read(buf)
		out := p[:0]
		for _, b := range buf[:n] {
			if d.held {
				d.held = false
				if b == secondDetachKey {
					d.detach()
					return len(out), client.ErrDetached
				}
				out = append(out, firstDetachKey)
			}
			if b == firstDetachKey {
				d.held = true
				continue
			}
			out = append(out, b)
		}
		if err != nil && d.held { // nothing follows
			d.held = false
			out = append(out, firstDetachKey)
		}
		if len(out) > 0 || err != nil || n == 0 {
			return len(out), err
		}
	}
}
