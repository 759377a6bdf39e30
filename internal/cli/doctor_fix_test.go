package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

// --fix does what is safe, asks before it changes the host, and leaves the rest alone.
func TestDoctorFixes(t *testing.T) {
	findings := func() []finding {
		return []finding{
			found("well", pass, ""),
			found("safe", fail, "").safely("safe"),
			{Check: "first", Verdict: warn, Fix: &fix{Kind: askFix, Command: "first"}},
			{Check: "second", Verdict: warn, Fix: &fix{Kind: askFix, Command: "second"}},
			found("hand", warn, "").byHand("hand"),
		}
	}
	for _, c := range []struct {
		name   string
		fixer  fixer
		answer string // to questions, if somebody can be asked
		ran    []string
		result string // of the second
	}{
		{"nobody to ask", fixer{}, "", []string{"safe"}, "give --yes"},
		{"asked", fixer{}, "y\nno\n", []string{"safe", "first"}, "not run"},
		{"asked, and no answer", fixer{}, "yes\n", []string{"safe", "first"}, "not run"},
		{"yes", fixer{yes: true}, "", []string{"safe", "first", "second"}, "failed: no"},
		{"dry", fixer{yes: true, dry: true}, "", nil, "would run"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var ran []string
			x := c.fixer
			x.out = io.Discard
			if c.answer != "" {
				x.in = bufio.NewReader(strings.NewReader(c.answer))
			}
			x.run = func(_ context.Context, command string, _ io.Writer) error {
				ran = append(ran, command)
				if command == "second" {
					return errors.New("no")
				}
				return nil
			}
			list := findings()
			if changed := x.fixAll(t.Context(), list); changed != (len(c.ran) > 0) || !slices.Equal(ran, c.ran) {
				t.Errorf("ran %q (%v), want %q", ran, changed, c.ran)
			}
			if got := list[3].Fix.Result; !strings.Contains(got, c.result) || list[4].Fix.Result != "" {
				t.Errorf("second: %q, hand: %q", got, list[4].Fix.Result)
			}
		})
	}
}

// On a terminal a report is for people: lines of its width, and commands whole.
func TestFindingsAreWrapped(t *testing.T) {
	var out strings.Builder
	err := printFindings(&out, 40, []finding{
		found("a", pass, "fine"),
		found("longer", warn, "one two three four five six seven eight").byHand("a command that is longer than a line"),
		merged([]finding{found("b", fail, "").safely("x")}, []finding{found("b", pass, "now")})[0],
	})
	const want = "pass  a       fine\n" +
		"warn  longer  one two three four five\n" +
		"              six seven eight\n" +
		"              → a command that is longer than a line\n" +
		"pass  b       now\n"
	if err != nil || out.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out.String(), want)
	}
}

// Where an emulated host serves, nothing of this host's kernel is to be mended, and VMs can run.
func TestDoctorInAnEmulatedHost(t *testing.T) {
	findings := append([]finding{found("emulated host", pass, "a runs"), found("daemon", pass, "")}, needless([]finding{
		found("/dev/kvm", warn, "missing").byHand("x"), found("cgroup v2", warn, "no limits").byHand(bootWith("y")),
		found("kernel", pass, ""),
	})...)
	for _, f := range findings {
		if f.Fix != nil || f.Verdict == warn {
			t.Errorf("%+v", f)
		}
	}
	short := first(findings)
	if len(short) != 2 || short[0].Verdict != pass || short[0].Check != "VMs can run" || short[1].Check != "daemon" {
		t.Errorf("%+v", short)
	}
	short = first([]finding{found("emulated host", skip, ""), found("/dev/kvm", fail, "missing"),
		found("token file", fail, ""), found("swap", warn, "")})
	if len(short) != 2 || short[0].Check != "/dev/kvm" || short[1].Check != "token file" {
		t.Errorf("%+v", short)
	}
}
