//go:build !unix

package client

// Systems that are not Unix do not have these flags.
const (
	notFollowing = 0
	notWaiting   = 0
)
