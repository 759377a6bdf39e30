package doctor

import (
	"bufio"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

// With --fix, safe fixes are run, fixes that change the host are run after a question, and all
// other fixes are not run.
func TestDoctorFixes(t *testing.T) {
	findings := func() []Finding {
		return []Finding{
			pass(""),
			fail("").by(safely("safe")),
			{Check: "first", Verdict: Warn, Fix: &Fix{Kind: askFix, Command: "first"}},
			{Check: "second", Verdict: Warn, Fix: &Fix{Kind: askFix, Command: "second"}},
			warn("").by(byHand("hand")),
		}
	}
	for _, c := range []struct {
		name   string
		fixer  Fixer
		answer string // answer to questions; empty: not interactive
		ran    []string
		result string // result of the fix of the second finding
	}{
		{"nobody to ask", Fixer{}, "", []string{"safe"}, "give --yes"},
		{"asked", Fixer{}, "y\nno\n", []string{"safe", "first"}, "not run"},
		{"asked, and no answer", Fixer{}, "yes\n", []string{"safe", "first"}, "not run"},
		{"yes", Fixer{Yes: true}, "", []string{"safe", "first", "second"}, "failed: no"},
		{"dry", Fixer{Yes: true, Dry: true}, "", nil, "would run"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var ran []string
			x := c.fixer
			x.Out = io.Discard
			if c.answer != "" {
				x.In = bufio.NewReader(strings.NewReader(c.answer))
			}
			x.run = func(_ context.Context, command string, _ io.Writer) error {
				ran = append(ran, command)
				if command == "second" {
					return errors.New("no")
				}
				return nil
			}
			list := findings()
			if changed := x.FixAll(t.Context(), list); changed != (len(c.ran) > 0) || !slices.Equal(ran, c.ran) {
				t.Errorf("ran %q (%v), want %q", ran, changed, c.ran)
			}
			if got := list[3].Fix.Result; !strings.Contains(got, c.result) || list[4].Fix.Result != "" {
				t.Errorf("second: %q, hand: %q", got, list[4].Fix.Result)
			}
		})
	}
}
