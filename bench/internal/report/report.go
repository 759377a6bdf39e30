// Package report prints and saves the results of a benchmark: as tables for people, and as JSON for
// programs. It also computes quantiles.
//
// It measures nothing. A figure that was not measured is a nil cell. Such a cell is printed as an
// empty field, and is null in JSON.
package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Report is the result of one benchmark.
type Report struct {
	Bench  string    `json:"bench"`
	Time   time.Time `json:"time"`
	Host   Host      `json:"host"`
	Tables []*Table  `json:"tables"`
}

// Host describes the host on which the figures were measured. Without this description, the figures
// have no meaning.
type Host struct {
	Accel  string `json:"accel"` // what runs the guests: "kvm", "tcg" (emulated CPU), "pvm" (no hardware virtualization)
	Kernel string `json:"kernel"`
	CPUs   int    `json:"cpus"`
	RAMMiB uint64 `json:"ram_mib"`
}

// Column is a column of a table.
type Column struct {
	Name string `json:"name"` // unique in its table; includes the unit, as in "pause p50 ms"
	// Digits is the number of digits of a float64 that are printed after the point. JSON contains
	// all digits.
	Digits int `json:"-"`
}

// Table is a list of rows. A cell is a string, int, uint64, float64, or nil if it was not measured.
type Table struct {
	Title   string
	Columns []Column
	Rows    [][]any
	Notes   []string // explanations below the table
}

// Add appends a row. If its number of cells differs from the number of columns, WriteTo and
// MarshalJSON return an error.
func (t *Table) Add(cells ...any) { t.Rows = append(t.Rows, cells) }

// Notef appends a note.
func (t *Table) Notef(format string, args ...any) {
	t.Notes = append(t.Notes, fmt.Sprintf(format, args...))
}

func (t *Table) check() error {
	for i, row := range t.Rows {
		if len(row) != len(t.Columns) {
			return fmt.Errorf("table %q, row %d: %d cells for %d columns", t.Title, i, len(row), len(t.Columns))
		}
	}
	return nil
}

// MarshalJSON encodes every row as an object with the columns' names as keys.
func (t *Table) MarshalJSON() ([]byte, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	rows := make([]map[string]any, len(t.Rows))
	for i, row := range t.Rows {
		rows[i] = make(map[string]any, len(row))
		for j, cell := range row {
			rows[i][t.Columns[j].Name] = cell
		}
	}
	return json.Marshal(struct {
		Title   string           `json:"title"`
		Columns []Column         `json:"columns"`
		Rows    []map[string]any `json:"rows"`
		Notes   []string         `json:"notes,omitempty"`
	}{t.Title, t.Columns, rows, t.Notes})
}

// write prints the table in Markdown. Columns are padded, so that the table is also readable in a
// terminal.
func (t *Table) write(w io.Writer) error {
	if err := t.check(); err != nil {
		return err
	}
	lines := make([][]string, 0, len(t.Rows)+2)
	head, rule := make([]string, len(t.Columns)), make([]string, len(t.Columns))
	for i, c := range t.Columns {
		head[i], rule[i] = c.Name, "---:"
	}
	lines = append(lines, head, rule)
	for _, row := range t.Rows {
		line := make([]string, len(row))
		for i, cell := range row {
			line[i] = t.Columns[i].text(cell)
		}
		lines = append(lines, line)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "### %s\n\n", t.Title)
	for _, line := range lines {
		for i, text := range line {
			width := 0
			for _, l := range lines {
				width = max(width, utf8.RuneCountInString(l[i]))
			}
			fmt.Fprintf(&b, "| %s%s ", strings.Repeat(" ", width-utf8.RuneCountInString(text)), text)
		}
		b.WriteString("|\n")
	}
	for _, note := range t.Notes {
		fmt.Fprintf(&b, "\n* %s", note)
	}
	if len(t.Notes) > 0 {
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	_, err := w.Write(b.Bytes())
	return err
}

func (c Column) text(cell any) string {
	switch v := cell.(type) {
	case nil:
		return ""
	case float64:
		return strconv.FormatFloat(v, 'f', c.Digits, 64)
	}
	return fmt.Sprint(cell)
}

// WriteTo prints the whole report.
func (r *Report) WriteTo(w io.Writer) (int64, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "## bench/%s: accel=%s, %d CPUs, %d MiB RAM, Linux %s\n\n", r.Bench, r.Host.Accel, r.Host.CPUs,
		r.Host.RAMMiB, r.Host.Kernel)
	for _, t := range r.Tables {
		if err := t.write(&b); err != nil {
			return 0, err
		}
	}
	return b.WriteTo(w)
}

// Save writes the report as JSON to path.
func (r *Report) Save(path string) error {
	p, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	return os.WriteFile(path, append(p, '\n'), 0o644)
}

// Quantile returns the quantile q by nearest rank: of the n samples in ascending order, it returns
// sample ⌈q·n⌉, counted from 1. It returns NaN if there are no samples. It never interpolates, so
// the result is always a measured value.
func Quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	s := slices.Clone(samples)
	slices.Sort(s)
	rank := int(math.Ceil(q * float64(len(s))))
	return s[min(max(rank, 1), len(s))-1]
}

// Cell returns v, or nil if v is NaN or infinite.
func Cell(v float64) any {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return v
}

// Millis converts durations to milliseconds.
func Millis(ds ...time.Duration) []float64 {
	ms := make([]float64, len(ds))
	for i, d := range ds {
		ms[i] = float64(d) / float64(time.Millisecond)
	}
	return ms
}
