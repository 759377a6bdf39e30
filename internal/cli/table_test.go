package cli

import (
	"os"
	"strings"
	"testing"
)

func tableOf(t *testing.T, width int, heading string, lines ...[]any) string {
	t.Helper()
	var out strings.Builder
	err := writeTable(&out, width, heading, func(row func(...any)) {
		for _, l := range lines {
			row(l...)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// On a terminal, only the widest columns are truncated. If the output is not a terminal, no column
// is truncated.
func TestTablesFitTheTerminal(t *testing.T) {
	lines := [][]any{{"sb-askayjdqa5urabarmv2ude3h6q", "a-rather-long-tag-of-a-snapshot", "running"}, {"x", "y", 7}}
	const whole = "ID                             SNAPSHOT                         STATE\n" +
		"sb-askayjdqa5urabarmv2ude3h6q  a-rather-long-tag-of-a-snapshot  running\n" +
		"x                              y                                7\n"
	const fits = "ID                   SNAPSHOT              STATE\n" +
		"sb-askayjdqa5uraba…  a-rather-long-tag-o…  running\n" +
		"x                    y                     7\n"
	for _, c := range []struct {
		width int
		want  string
	}{{0, whole}, {71, whole}, {200, whole}, {50, fits}} {
		if got := tableOf(t, c.width, "ID\tSNAPSHOT\tSTATE", lines...); got != c.want {
			t.Errorf("%d columns:\n%s\nwant\n%s", c.width, got, c.want)
		}
	}
	if got := tableOf(t, 10, "ID\tSNAPSHOT\tSTATE", lines...); !strings.Contains(got,
		"\nsb-askayjdq…  a-rather-lo…  running\n") {
		t.Errorf("10 columns:\n%s", got)
	}
}

// Text from a guest or a client stays within its cell of the table.
func TestACellIsALine(t *testing.T) {
	got := tableOf(t, 0, "A\tB", []any{"one\ntwo\tthree\x1b[2J", "b"})
	if want := "A                  B\none two three\ufffd[2J  b\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Colours are printed only on a terminal, and only if the user has not disabled them.
func TestColoursAreLeftOut(t *testing.T) {
	var out strings.Builder
	if got := coloured(&out, red, "fail"); got != "fail" {
		t.Errorf("in a file: %q", got)
	}
	_, terminal := openPTY(t)
	if got := coloured(terminal, red, "fail"); got != "\x1b[31mfail\x1b[0m" {
		t.Errorf("on a terminal: %q", got)
	}
	t.Setenv("NO_COLOR", "1")
	if got := coloured(terminal, red, "fail"); got != "fail" {
		t.Errorf("with NO_COLOR: %q", got)
	}
	os.Unsetenv("NO_COLOR")
	t.Setenv("TERM", "dumb")
	if got := coloured(terminal, red, "fail"); got != "fail" {
		t.Errorf("with TERM=dumb: %q", got)
	}
}
