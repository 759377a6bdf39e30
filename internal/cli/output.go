package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

func checkOutput(format string) error {
	if format != "text" && format != "json" {
		return usageError{fmt.Errorf("output format %q: use text or json", format)}
	}
	return nil
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// count is n of something, in words.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// age is the time since a Unix time, in its largest unit.
func age(unix int64) string {
	d := time.Since(time.Unix(unix, 0))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// isTerminal reports whether w is one.
func isTerminal(w io.Writer) bool {
	f, ok := fileOf(w)
	return ok && term.IsTerminal(int(f.Fd()))
}

// fileOf returns the file that w writes to.
func fileOf(w io.Writer) (*os.File, bool) {
	if p, ok := w.(printer); ok {
		w = p.to
	}
	f, ok := w.(*os.File)
	return f, ok
}

// canRedraw reports whether w is a terminal on which a line can be written again.
func canRedraw(w io.Writer) bool { return isTerminal(w) && os.Getenv("TERM") != "dumb" }

func isTerminalInput(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// status shows what a long command is doing: one line that is rewritten on a terminal, a line per
// stage elsewhere.
type status struct {
	w     io.Writer
	live  bool
	start time.Time
	stage string
	stop  chan struct{}
	done  chan struct{}
	next  chan [2]string
}

func newStatus(w io.Writer) *status {
	s := &status{w: w, live: canRedraw(w), start: time.Now(),
		stop: make(chan struct{}), done: make(chan struct{}), next: make(chan [2]string)}
	go s.run()
	return s
}

// step names the present stage and what it does at the moment.
func (s *status) step(stage, detail string) {
	select {
	case s.next <- [2]string{stage, detail}:
	case <-s.done:
	}
}

// end clears the line.
func (s *status) end() {
	close(s.stop)
	<-s.done
}

func (s *status) run() {
	defer close(s.done)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	detail := ""
	for {
		select {
		case n := <-s.next:
			if n[0] != s.stage && !s.live {
				fmt.Fprintf(s.w, "forkd: %s\n", n[0])
			}
			s.stage, detail = n[0], n[1]
		case <-tick.C:
			if s.live && s.stage != "" {
				line := []rune(fmt.Sprintf("%5.1fs  %s  %s", time.Since(s.start).Seconds(), s.stage, detail))
				fmt.Fprintf(s.w, "\r\x1b[K%s", string(line[:min(len(line), 100)]))
			}
		case <-s.stop:
			if s.live {
				fmt.Fprint(s.w, "\r\x1b[K")
			}
			return
		}
	}
}
