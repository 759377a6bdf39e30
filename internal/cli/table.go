package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// Layout of tables. Widths are in columns of a terminal.
const (
	tableGap   = 2  // space between two columns
	leastWidth = 12 // minimum width of a truncated column on a narrow terminal; all numbers fit
)

// noTruncFlag is the flag of all commands that disables the truncation of tables.
const noTruncFlag = "no-trunc"

// table prints rows in columns under a heading. On a terminal, it truncates the rows to the
// terminal's width.
func table(cmd *cobra.Command, heading string, rows func(row func(cells ...any))) error {
	return writeTable(cmd.OutOrStdout(), tableWidth(cmd), heading, rows)
}

// values() prints names and values in two columns. It never truncates them.
func values(cmd *cobra.Command, heading string, rows func(row func(cells ...any))) error {
	return writeTable(cmd.OutOrStdout(), 0, heading, rows)
}

// tableWidth returns the maximum width of a table; 0: unlimited.
func tableWidth(cmd *cobra.Command) int {
	if whole, err := cmd.Flags().GetBool(noTruncFlag); err == nil && whole {
		return 0
	}
	size, _ := terminalSize(cmd.OutOrStdout())
	return int(size.Cols)
}

// writeTable prints a table. If the table is wider than the given width, its widest columns are
// truncated. A width of 0 means no limit.
func writeTable(w io.Writer, width int, heading string, rows func(row func(cells ...any))) error {
	var lines [][]string
	add := func(cells ...any) {
		line := make([]string, len(cells))
		for i, c := range cells {
			line[i] = oneLine(fmt.Sprint(c))
		}
		lines = append(lines, line)
	}
	var first []any
	for name := range strings.SplitSeq(heading, "\t") { // clean it, because a heading of values may contain a value
		first = append(first, name)
	}
	add(first...)
	rows(add)
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

// columnWidths returns the width of each column. If possible, a line fits into the given width.
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

// ellipsis marks truncated text. sandboxID accepts ids that end with it.
const ellipsis = "…"

func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + ellipsis
}

// Colours of the terminal, as parameters of the control sequence SGR (ECMA-48, 8.3.117).
const (
	red    = "31"
	green  = "32"
	yellow = "33"
)

// coloured returns text in a colour if w is a terminal that supports colours and the user has not
// disabled them (https://no-color.org).
func coloured(w io.Writer, colour, text string) styled {
	if !isTerminal(w) || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return styled(text)
	}
	return styled("\x1b[" + colour + "m" + text + "\x1b[0m")
}
