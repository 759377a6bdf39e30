package uffd

import "github.com/forkd/forkd/internal/jail"

// Calls returns the system calls of this package, without the calls of the Go runtime.
func Calls() []jail.Call {
	return jail.Ioctls(ioNew, ioAPI, ioRegister, ioWake, ioWriteProtect)
}
