package vm

import (
	"errors"
	"fmt"
	"syscall"
)

// ErrorCode is the kind of an error of a VMM. The daemon reacts to the code, and the text of the
// error is for people. A code implements error, so that it can be used with errors.Is.
type ErrorCode uint8

// The error codes.
const (
	ErrOther     ErrorCode = iota + 1 // any other error
	ErrVersion                        // daemon and VMM belong to different builds
	ErrNotPaused                      // the request requires a paused machine
	ErrCopying                        // the previous live branch is still being copied; try again later
	ErrNoSpace                        // a file system is full
	ErrBadState                       // the saved state is damaged, or has a form that this build does not know
	ErrShape                          // the saved machine has different memory, vCPUs, template or devices
	ErrCPU                            // the state cannot be restored on this host's CPU
	ErrNotKept                        // the machine no longer knows which of its pages equal the pages of the branch
)

// Error describes the code.
func (c ErrorCode) Error() string {
	switch c {
	case ErrVersion:
		return "daemon and VMM are of different builds"
	case ErrNotPaused:
		return "the machine is not paused"
	case ErrCopying:
		return "a live branch is still being copied"
	case ErrNoSpace:
		return syscall.ENOSPC.Error()
	case ErrBadState:
		return "the saved state is unusable"
	case ErrShape:
		return "the saved state is of another machine"
	case ErrCPU:
		return "the host's cpu does not fit"
	case ErrNotKept:
		return "the pages of the branch are no longer known"
	}
	return fmt.Sprintf("error code %d", uint8(c))
}

// Error is an error with a code. The control socket carries only the code and the text.
type Error struct {
	Code ErrorCode
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Is reports whether the error target is the code of e, or an error of the operating system that
// corresponds to the code.
func (e *Error) Is(target error) bool {
	code, ok := target.(ErrorCode)
	return ok && code == e.Code || e.Code == ErrNoSpace && target == syscall.ENOSPC
}

// WithCode gives err a code. If err already has a code, or is nil, WithCode returns it unchanged.
func WithCode(code ErrorCode, err error) error {
	if err == nil || CodeOf(err) != ErrOther {
		return err
	}
	return &Error{Code: code, Err: err}
}

// CodeOf returns the code of err.
func CodeOf(err error) ErrorCode {
	var coded *Error
	var code ErrorCode
	switch {
	case errors.As(err, &coded):
		return coded.Code
	case errors.As(err, &code):
		return code
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return ErrNoSpace
	}
	return ErrOther
}
