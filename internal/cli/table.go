package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// Layout of tables, in columns of a terminal.
const (
	tableGap   = 2  // between two columns
	leastWidth = 12 // to which a column is cut, however narrow the terminal is; no number is longer
)

// noTruncFlag is the flag, of all commands, that leaves tables as wide as they are.
const noTruncFlag = "no-trunc"

// table prints rows in columns under a heading. Where that is a terminal, it makes them fit.
func table(cmd *cobra.Command, heading string, rows func(row func(cells ...any))) error {
	return writeTable(cmd.OutOrStdout(), tableWidth(cmd), heading, rows)
}

// values prints names and values, which are read one by one, and never cut.
func values(cmd *cobra.Command, heading string, rows func(row func(cells ...any))) error {
	return writeTable(cmd.OutOrStdout(), 0, heading, rows)
}

// tableWidth returns how wide a table may be, 0 for any width.
func tableWidth(cmd *cobra.Command) int {
	if whole, err := cmd.Flags().GetBool(noTruncFlag); err == nil && whole {
		return 0
	}
	size, _ := terminalSize(cmd.OutOrStdout())
	return int(size.Cols)
}

// writeTable prints a table. One that is wider than width, unless that is 0, has its widest columns
// cut.
func writeTable(w io.Writer, width int, heading string, rows func(row func(cells ...any))) error {
	lines := [][]string{strings.Split(heading, "\t")}
	rows(func(cells ...any) {
		line := make([]string, len(cells))
		for i, c := range cells {
			line[i] = oneLine(fmt.Sprint(c))
		}
		lines = append(lines, line)
	})
	widths := columnWidths(lines, width)
	var text strings.Builder
	for _, line := range lines {
		for i, cell := range line {
			cell = cut(cell, widths[i])
			text.WriteString(cell)
			if i < len(line)-1 {
				text.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+tableGap))
			}
		}
		text.WriteByte('\n')
	}
	if _, err := io.WriteString(w, text.String()); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// columnWidths returns how wide each column is so that lines fit a width, as far as that is
// possible.
func columnWidths(lines [][]string, width int) []int {
	var widths []int
	total := -tableGap
	for _, line := range lines {
		for i, cell := range line {
			if i == len(widths) {
				widths = append(widths, 0)
				total += tableGap
			}
			n := utf8.RuneCountInString(cell)
			total += max(0, n-widths[i])
			widths[i] = max(n, widths[i])
		}
	}
	for ; width > 0 && total > width; total-- {
		widest := 0
		for i := range widths {
			if widths[i] > widths[widest] {
				widest = i
			}
		}
		if widths[widest] <= leastWidth {
			break
		}
		widths[widest]--
	}
	return widths
}

// ellipsis stands for what was cut off. Ids may be given with it: see sandboxID.
const ellipsis = "…"

func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + ellipsis
}

// oneLine is text without what would break a table or act upon a terminal.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsPrint(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return unicode.ReplacementChar
	}, text)
}

// colours of the terminal, as parameters of SGR (ECMA-48, 8.3.117).
const (
	red    = "31"
	green  = "32"
	yellow = "33"
)

// coloured returns text in a colour if w is a terminal that has them, and the user wants them
// (https://no-color.org).
func coloured(w io.Writer, colour, text string) string {
	if !isTerminal(w) || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}
