// Package invalid provides the error for a request with a wrong field. All packages of the daemon
// use it for bad input, so the code that answers requests needs to know only one type.
//
// The package checks nothing. The packages that use a field decide which values are valid.
package invalid

import "fmt"

// Error reports a wrong field of a request, and how to correct it.
type Error struct {
	Field  string // name of the field in the API
	Reason string
}

func (e *Error) Error() string { return e.Field + ": " + e.Reason }

// Errorf returns an *Error.
func Errorf(field, format string, args ...any) error {
	return &Error{Field: field, Reason: fmt.Sprintf(format, args...)}
}
