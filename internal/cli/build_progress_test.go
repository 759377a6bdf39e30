package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// Text from a Dockerfile or from its commands cannot control the terminal. Each text stays on its
// line, in a pipe and in the redrawn block.
func TestWordsOfBuildsAreForReading(t *testing.T) {
	const hostile = "\x1b]0;owned\x07 \x1b[3A\u202eetis\u2066 \u009b2J\r\nforkd: all is well"
	for _, live := range []bool{false, true} {
		var out log
		p := newProgress(&out, live)
		for _, e := range []client.BuildEvent{
			{Plan: &client.BuildPlan{Steps: []string{hostile, hostile}, Notes: []client.BuildNote{{Line: 1, Text: hostile}}}},
			{Step: &client.BuildStep{Number: 0, State: "cached"}},
			{Step: &client.BuildStep{Number: 1, State: "started"}},
			{Output: &client.BuildOutput{Number: 1, Line: hostile}},
			{Step: &client.BuildStep{Number: 1, State: "failed"}},
		} {
			if err := p.event(e); err != nil {
				t.Fatal(err)
			}
		}
		p.end()
		text := out.String()
		for _, bad := range []string{"\x1b]", "\x1b[3A", "\x07", "\u202e", "\u2066", "\u009b", "\r", "\nforkd:"} {
			// Remove the one control sequence that the block itself prints.
			if text := strings.ReplaceAll(text, "A\r\x1b[J", ""); strings.Contains(text, bad) {
				t.Errorf("live %v: %q is printed:\n%q", live, bad, text)
			}
		}
		if n := strings.Count(text, "all is well"); n < 4 {
			t.Errorf("live %v: %d of the texts are printed:\n%q", live, n, text)
		}
	}
}

// Of the steps and texts that a daemon sends, only a bounded part is kept, because the daemon may
// be hostile.
func TestProgressKeepsLittle(t *testing.T) {
	p := newProgress(&log{}, true)
	defer p.end()
	event := func(e client.BuildEvent) {
		t.Helper()
		if err := p.event(e); err != nil {
			t.Fatal(err)
		}
	}
	long := strings.Repeat("x", 1<<20)
	event(client.BuildEvent{Plan: &client.BuildPlan{Steps: []string{long, "b"}}})
	for n := range 5000 {
		event(client.BuildEvent{Output: &client.BuildOutput{Number: n - 1000, Line: fmt.Sprint(n)}})
		event(client.BuildEvent{Step: &client.BuildStep{Number: n - 1000, State: "started"}})
	}
	event(client.BuildEvent{Output: &client.BuildOutput{Number: 1, Line: long}})
	p.mu.Lock()
	if n := len(p.begun); n != maxShownSteps {
		t.Errorf("%d steps are begun, want %d", n, maxShownSteps)
	}
	if len(p.last) > maxShownSteps || len(p.last[1]) != 1 || len(p.last[1][0]) != maxShownText ||
		len(p.names[0]) != maxShownText {
		t.Errorf("lines of %d steps, line of %d bytes, name of %d bytes", len(p.last), len(p.last[1][0]), len(p.names[0]))
	}
	p.mu.Unlock()
	err := p.event(client.BuildEvent{Plan: &client.BuildPlan{Steps: make([]string, maxShownSteps+1)}})
	if err == nil || !strings.Contains(err.Error(), "1001 steps") {
		t.Errorf("a long plan: %v", err)
	}
}
