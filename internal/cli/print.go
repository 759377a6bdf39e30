package cli

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf16"
)

// Text for people is printed by printf, printLine and the functions of table.go, and by nothing else
// (TestTextIsPrintedInOnePlace). The words in it come from daemons and guests, which are not
// trusted: they neither control the terminal nor begin a line. What a program in a sandbox writes
// goes to the terminal unchanged, by io.Copy and io.WriteString.

// printf is fmt.Fprintf with arguments that are cleaned. A format is this program's own text.
func printf(w io.Writer, format string, args ...any) (int, error) {
	for i, a := range args {
		args[i] = cleaned(a)
	}
	return fmt.Fprintf(w, format, args...)
}

// printLine is fmt.Fprintln with arguments that are cleaned.
func printLine(w io.Writer, args ...any) (int, error) {
	for i, a := range args {
		args[i] = cleaned(a)
	}
	return fmt.Fprintln(w, args...)
}

// multiline is an argument that keeps its tabs and line ends. Errors keep theirs too.
type multiline string

// styled is an argument with control sequences of this program, which is printed unchanged.
type styled string

// cleaned returns an argument without characters that control a terminal. Numbers keep their type,
// for their verbs; anything else becomes text.
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

// printable returns the text of an error without terminal control sequences, because a guest may
// have written a part of it.
func printable(err error) string { return printableText(err.Error()) }

// printableText removes characters that control a terminal from text.
func printableText(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// oneLine removes characters from text that would break a table or control a terminal.
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

// plainJSON writes JSON to w and escapes the characters that package json leaves and a terminal may
// obey, such as those that reverse text. Each Write has whole values.
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
