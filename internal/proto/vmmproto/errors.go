package vmmproto

import (
	"errors"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Error is the body of KindError. The daemon reacts to the code; the text is for people.
type Error struct {
	Code vm.ErrorCode
	Text string
}

// ErrorOf returns the Error for err.
func ErrorOf(err error) *Error { return &Error{Code: vm.CodeOf(err), Text: err.Error()} }

// Err returns the error that the other side has sent, with its code and text.
func (m *Error) Err() error { return &vm.Error{Code: m.Code, Err: errors.New(m.Text)} }

// Append encodes m.
func (m *Error) Append(w *codec.Writer) {
	w.U8(uint8(m.Code))
	w.String(m.Text)
}

// Parse decodes m.
func (m *Error) Parse(r *codec.Reader) error {
	*m = Error{Code: vm.ErrorCode(r.U8()), Text: parseText(r)}
	return r.Err()
}
