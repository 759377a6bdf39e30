package cli

import (
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// What a Dockerfile and the commands of its steps say may be of others: a terminal does not act upon it, and
// each of their texts stays on its line, in a pipe and in the block that is written again and again.
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
			if text := strings.ReplaceAll(text, "A\r\x1b[J", ""); strings.Contains(text, bad) { // that of the block itself
				t.Errorf("live %v: %q is printed:\n%q", live, bad, text)
			}
		}
		if n := strings.Count(text, "all is well"); n < 4 {
			t.Errorf("live %v: %d of the texts are printed:\n%q", live, n, text)
		}
	}
}
