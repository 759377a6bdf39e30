//go:build unix

package client

import "golang.org/x/sys/unix"

// With these flags, opening a symbolic link fails and opening a pipe does not wait.
const (
	notFollowing = unix.O_NOFOLLOW
	notWaiting   = unix.O_NONBLOCK
)
