package cli

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf16"
)

// Text for people is printed only by printf, printLine and the functions of table.go
// (TestTextIsPrintedInOnePlace checks this). Arguments may come from daemons and guests, which are
// not trusted, so these functions remove characters that control the terminal or begin a new line.
// The output of a program in a sandbox is different: io.Copy and io.WriteString write it to the
// terminal unchanged.

// printf is like fmt.Fprintf, but cleans its arguments. The format must be a text of this program.
func printf(w io.Writer, format string, args ...any) (int, error) {
	for i, a := range args {
		args[i] = cleaned(a)
	}
	return fmt.Fprintf(w, format, args...)
}

// printLine is like fmt.Fprintln, but cleans its arguments.
func printLine(w io.Writer, args ...any) (int, error) {
	for i, a := range args {
		args[i] = cleaned(a)
	}
	return fmt.Fprintln(w, args...)
}

// multiline is an argument that keeps its tabs and line ends. An error also keeps them.
type multiline string

// styled is an argument that is printed unchanged, because it contains control sequences of this
// program.
type styled string

// cleaned returns an argument without characters that control a terminal. Numbers keep their type,
// for verbs such as %d. Any other argument becomes text.
func cleaned(arg any) any {
	switch arg := arg.(type) {
	case nil, styled:
		return arg
	case multiline:
		return printableText(string(arg))
	case error:
		return printable(arg)
	}
	switch kind := reflect.TypeOf(arg).Kind(); {
	case kind >= reflect.Bool && kind <= reflect.Complex128:
		return arg
	}
	return oneLine(fmt.Sprint(arg))
}

// printable returns the text of an error without characters that control a terminal. A guest may
// have written a part of that text.
func printable(err error) string { return printableText(err.Error()) }

// printableText removes from a text the characters that control a terminal.
func printableText(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// oneLine removes from a text the characters that would control a terminal or break a row of a
// table.
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

// plainJSON writes JSON to w. It escapes characters that affect a terminal but that package json
// leaves unescaped, such as characters that reverse the direction of text. Each Write must consist
// of complete values.
type plainJSON struct{ w io.Writer }

func (p plainJSON) Write(text []byte) (int, error) {
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case r < 0x7f || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	if _, err := io.WriteString(p.w, b.String()); err != nil {
		return 0, err
	}
	return len(text), nil
}
