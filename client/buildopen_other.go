//go:build !unix

package client

// Systems without these flags have no such links, and no pipes in directories.
const (
	notFollowing = 0
	notWaiting   = 0
)
