package cli

import (
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/forkd/forkd/client"
)

// terminal connects the local terminal to a process in a sandbox. Keys, including Ctrl-C, are sent
// to the process unchanged, and changes of the terminal's size are reported to it.
type terminal struct {
	restore func()
	resized chan os.Signal
	told    chan struct{} // closed after the last call of resize; nil if resize is never called
}

// openTerminal sets up input and output, if they are terminals, until close() is called on the
// result. If input is nil, only output is set up.
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
	t.resized <- syscall.SIGWINCH // the size may have changed between the start of the process and now
	return t, nil
}

func (t *terminal) close() {
	signal.Stop(t.resized)
	close(t.resized)
	if t.told != nil {
		<-t.told // afterwards the caller may close the terminal's files
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

// The keys that detach from a process are the same as docker's: Ctrl-P, Ctrl-Q.
const (
	firstDetachKey  = 'P' - '@'
	secondDetachKey = 'Q' - '@'
)

// detachKeys is a reader that ends at the two keys that detach. It keeps the first of these keys
// until the next key has been read.
type detachKeys struct {
	from   io.Reader
	detach func()
	held   bool
}

func (d *detachKeys) Read(p []byte) (int, error) {
	if len(p) < 2 { // there must be room for the held key
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
		if err != nil && d.held { // no key will follow the held one
			d.held = false
			out = append(out, firstDetachKey)
		}
		if len(out) > 0 || err != nil || n == 0 {
			return len(out), err
		}
	}
}
