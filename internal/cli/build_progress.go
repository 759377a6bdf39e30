package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/client"
)

// progress shows the progress of a build, as docker build does. It prints permanent lines. On a
// terminal, it also redraws a block with the current steps at the bottom.
type progress struct {
	w     io.Writer
	live  bool
	names []string
	begun map[int]time.Time
	last  map[int][]string // last lines of output of the current steps, by the step's number

	mu    sync.Mutex
	lines int // lines of the block on the screen
	stop  chan struct{}
	done  chan struct{}
}

// The block shows at most shownLines lines of output for each step, and shownColumns columns.
const (
	shownLines   = 4
	shownColumns = 100
)

// Bounds on the memory for the steps and texts that the daemon sends. The daemon is not trusted.
const (
	maxShownSteps = 1000
	maxShownText  = 4096 // runes kept of a name or a line
)

func newProgress(w io.Writer, live bool) *progress {
	p := &progress{w: w, live: live, begun: make(map[int]time.Time), last: make(map[int][]string),
		stop: make(chan struct{}), done: make(chan struct{})}
	go p.run()
	return p
}

// run redraws the block as time passes.
func (p *progress) run() {
	defer close(p.done)
	if !p.live {
		return
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
			p.mu.Lock()
			p.redrawLocked("")
			p.mu.Unlock()
		}
	}
}

// end removes the block.
func (p *progress) end() {
	close(p.stop)
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.begun)
	p.redrawLocked("")
}

// event shows one event of the build.
func (p *progress) event(e client.BuildEvent) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case e.Plan != nil:
		if n := len(e.Plan.Steps); n > maxShownSteps {
			return fmt.Errorf("the daemon's plan has %d steps: at most %d are shown", n, maxShownSteps)
		}
		p.names = nil
		for _, name := range e.Plan.Steps {
			p.names = append(p.names, firstRunes(name, maxShownText))
		}
		for _, n := range e.Plan.Notes {
			where := ""
			if n.Line > 0 {
				where = fmt.Sprintf("line %d: ", n.Line)
			}
			p.redrawLocked("note: %s%s\n", where, n.Text)
		}
	case e.Step != nil:
		p.stepLocked(e.Step)
	case e.Output != nil:
		n := e.Output.Number
		if !p.live {
			printf(p.w, "#%d %.3f %s\n", n+1, time.Since(p.begun[n]).Seconds(), e.Output.Line)
			break
		}
		if _, ok := p.begun[n]; !ok { // the step is not shown, so its output is not shown either
			break
		}
		last := append(slices.Clone(p.last[n]), strings.Clone(firstRunes(e.Output.Line, maxShownText)))
		p.last[n] = last[max(0, len(last)-shownLines):]
	}
	return nil
}

func (p *progress) name(n int) string {
	if n < 0 || n >= len(p.names) {
		return fmt.Sprint("step ", n+1)
	}
	return p.names[n]
}

func (p *progress) stepLocked(s *client.BuildStep) {
	name, n := p.name(s.Number), s.Number
	began := p.begun[n]
	switch s.State {
	case "started":
		if n >= 0 && n < maxShownSteps {
			p.begun[n] = time.Now()
		}
		if !p.live {
			printf(p.w, "#%d %s\n", n+1, name)
		}
		return
	case "cached":
		if p.live {
			p.redrawLocked(" => CACHED %s\n", name)
			return
		}
		printf(p.w, "#%d %s\n#%d CACHED\n\n", n+1, name, n+1)
		return
	}
	delete(p.begun, n)
	took := time.Duration(s.MS * float64(time.Millisecond))
	if s.MS == 0 && !began.IsZero() {
		took = time.Since(began)
	}
	failed := s.State == "failed"
	switch {
	case !p.live && failed:
		printf(p.w, "#%d ERROR after %.1fs\n\n", n+1, took.Seconds())
	case !p.live:
		printf(p.w, "#%d DONE %.1fs\n\n", n+1, took.Seconds())
	case failed:
		var last strings.Builder
		for _, line := range p.last[n] {
			printf(&last, " => => %s\n", line)
		}
		p.redrawLocked(" => ERROR %s %.1fs\n%s", name, took.Seconds(), multiline(last.String()))
	default:
		p.redrawLocked(" => %s %.1fs\n", name, took.Seconds())
	}
	delete(p.last, n)
}

// firstRunes returns the first n runes of a text.
func firstRunes(text string, n int) string {
	for at := range text {
		if n--; n < 0 {
			return text[:at]
		}
	}
	return text
}

// redrawLocked prints permanent text, and the block below it.
func (p *progress) redrawLocked(format string, args ...any) {
	if !p.live {
		printf(p.w, format, args...)
		return
	}
	var b strings.Builder
	if p.lines > 0 {
		printf(&b, "\x1b[%dA\r\x1b[J", p.lines)
	}
	printf(&b, format, args...)
	p.lines = 0
	line := func(text string) {
		printf(&b, "%s\n", firstRunes(text, shownColumns))
		p.lines++
	}
	for n := range p.names {
		began, ok := p.begun[n]
		if !ok {
			continue
		}
		line(fmt.Sprintf(" => %s %.1fs", p.name(n), time.Since(began).Seconds()))
		for _, l := range p.last[n] {
			line(" => => " + l)
		}
	}
	io.WriteString(p.w, b.String())
}
