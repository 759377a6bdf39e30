package cli

import (
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/forkd/forkd/client"
)

// terminal connects the local terminal to a process in a sandbox: keys go to the process unchanged,
// including Ctrl-C, and the process knows the terminal's size.
type terminal struct {
	restore func()
	resized chan os.Signal
	told    chan struct{} // closed after the last call of resize; nil if resize is never called
}

// openTerminal uses input and output, if they are terminals, until close. A nil input is not used.
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
	t.resized <- syscall.SIGWINCH // the size may have changed since the process was started
	return t, nil
}

func (t *terminal) close() {
	signal.Stop(t.resized)
	close(t.resized)
	if t.told != nil {
		<-t.told // the caller may then close the terminal's files
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

// The keys that detach from a process, as in docker: Ctrl-P, Ctrl-Q.
const (
	firstDetachKey  = 'P' - '@'
	secondDetachKey = 'Q' - '@'
)

// detachKeys passes on keys, except for the two keys that detach. It withholds the first until the
// next key is known.
type detachKeys struct {
	from   io.Reader
	detach func()
	held   bool
}

func (d *detachKeys) Read(p []byte) (int, error) {
	if len(p) < 2 { // room for a withheld key
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
		if err != nil && d.held { // no key follows
			d.held = false
			out = append(out, firstDetachKey)
		}
		if len(out) > 0 || err != nil || n == 0 {
			return len(out), err
		}
	}
}
