// Package invalid has the error for a request with a wrong field. Every package on the daemon's
// side refuses bad input with it, so that the faces need to know one type only.
//
// It checks nothing: the users of a field decide which values are valid.
package invalid

import "fmt"

// Error reports a wrong field of a request, and how to correct it.
type Error struct {
	Field  string // the API's name of the field
	Reason string
}

func (e *Error) Error() string { return e.Field + ": " + e.Reason }

// Errorf returns an *Error.
func Errorf(field, format string, args ...any) error {
	return &Error{Field: field, Reason: fmt.Sprintf(format, args...)}
}
