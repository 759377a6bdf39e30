//go:build !unix

package client

// A system without such flags has neither these links nor such pipes in directories.
const (
	notFollowing = 0
	notWaiting   = 0
)
