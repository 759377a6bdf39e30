package uffd

import "github.com/forkd/forkd/internal/jail"

// Calls are those of this package beside the runtime's.
func Calls() []jail.Call {
	return jail.Ioctls(ioNew, ioAPI, ioRegister, ioWake, ioWriteProtect)
}
