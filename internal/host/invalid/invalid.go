// Package invalid is the error of a request with a wrong field. It is what every package of the
// daemon's side refuses bad input with, so that its faces need to know one type only.
//
// It checks nothing: what a field may be is decided where it is used.
package invalid

import "fmt"

// Error reports a field of a request that is wrong, and how to put it right.
type Error struct {
	Field  string // as the API spells it
	Reason string
}

func (e *Error) Error() string { return e.Field + ": " + e.Reason }

// Errorf returns an *Error.
func Errorf(field, format string, args ...any) error {
	return &Error{Field: field, Reason: fmt.Sprintf(format, args...)}
}
