package cli

import (
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/doctor"
)

// On a terminal, the lines of a report are wrapped to the terminal's width. Commands are not
// wrapped.
func TestFindingsAreWrapped(t *testing.T) {
	var out strings.Builder
	done := []doctor.Finding{{Check: "b", Verdict: doctor.Fail, Fix: &doctor.Fix{Command: "x", Result: "done"}}}
	err := printFindings(&out, 40, []doctor.Finding{
		{Check: "a", Verdict: doctor.Pass, Detail: "fine"},
		{Check: "longer", Verdict: doctor.Warn, Detail: "one two three four five six seven eight",
			Fix: &doctor.Fix{Command: "a command that is longer than a line"}},
		doctor.Merge(done, []doctor.Finding{{Check: "b", Verdict: doctor.Pass, Detail: "now"}})[0],
	})
	const want = "pass  a       fine\n" +
		"warn  longer  one two three four five\n" +
		"              six seven eight\n" +
		"              → a command that is longer than a line\n" +
		"pass  b       now\n" +
		"              → x (done)\n"
	if err != nil || out.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out.String(), want)
	}
}
