//go:build unix

package client

import "golang.org/x/sys/unix"

// Flags with which opening a symbolic link fails, and opening a pipe does not wait.
const (
	notFollowing = unix.O_NOFOLLOW
	notWaiting   = unix.O_NONBLOCK
)
