//go:build unix

package client

import "golang.org/x/sys/unix"

// Flags of opening a file: a link itself is not opened, and a pipe is not waited for.
const (
	notFollowing = unix.O_NOFOLLOW
	notWaiting   = unix.O_NONBLOCK
)
