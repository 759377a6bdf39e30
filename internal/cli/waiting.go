package cli

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// waiting is a line on a terminal that says what a command is waiting for, and for how long. It
// appears after an interval without output, and is removed before the next output.
type waiting struct {
	start time.Time
	stop  chan struct{}
	done  chan struct{}

	mu sync.Mutex // held while the line or other output is printed
	// +checklocks:mu
	what string // what the command waits for; empty if nothing has begun
	// +checklocks:mu
	out io.Writer
	// +checklocks:mu
	shown bool
}

// startWaiting starts to show the line on a terminal. When the wait is over, the caller must call
// end() on the result.
func startWaiting(out io.Writer, what string, interval time.Duration) *waiting {
	w := &waiting{out: out, what: what, start: time.Now(), stop: make(chan struct{}), done: make(chan struct{})}
	go w.run(interval)
	return w
}

func (w *waiting) run(interval time.Duration) {
	defer close(w.done)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
		w.mu.Lock()
		if w.what != "" {
			line := []rune(fmt.Sprintf("%3.0fs  %s", time.Since(w.start).Seconds(), w.what))
			printf(w.out, clearLine+"%s", string(line[:min(len(line), 79)]))
			w.shown = true
		}
		w.mu.Unlock()
	}
}

// clearLine moves the cursor to the beginning of its line and clears the line.
const clearLine = "\r\x1b[K"

// clearLocked removes the line from the terminal.
//
// +checklocks:w.mu
func (w *waiting) clearLocked() {
	if w.shown {
		io.WriteString(w.out, clearLine)
		w.shown = false
	}
}

// end removes the line for good.
func (w *waiting) end() {
	close(w.stop)
	<-w.done
	w.mu.Lock()
	w.clearLocked()
	w.mu.Unlock()
}

// before(to) returns a writer that passes its input to the given writer. Before each write, it
// removes the waiting line from w's terminal. The given writer may be this terminal.
func (w *waiting) before(to io.Writer) io.Writer { return printer{w, to} }

type printer struct {
	*waiting
	to io.Writer
}

func (p printer) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clearLocked()
	return p.to.Write(text)
}

// status shows the stages of a long command. On a terminal it shows them in one line, like waiting.
// Elsewhere it prints a line for each stage.
type status struct {
	w    io.Writer
	line *waiting // nil if w is not a terminal

	mu sync.Mutex
	// +checklocks:mu
	stage string
}

// statusInterval is the time between two updates of the line.
const statusInterval = 200 * time.Millisecond

func newStatus(w io.Writer) *status {
	s := &status{w: w}
	if canRedraw(w) {
		s.line = startWaiting(w, "", statusInterval)
	}
	return s
}

// step sets the present stage and its detail.
func (s *status) step(stage, detail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.line != nil:
		s.line.mu.Lock()
		s.line.what = stage + "  " + detail
		s.line.mu.Unlock()
	case stage != s.stage:
		printf(s.w, "forkd: %s\n", stage)
	}
	s.stage = stage
}

// end clears the line.
func (s *status) end() {
	if s.line != nil {
		s.line.end()
	}
}
