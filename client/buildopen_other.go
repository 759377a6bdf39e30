//go:build !unix

package client

// Systems other than Unix have neither O_NOFOLLOW nor O_NONBLOCK.
const (
	notFollowing = 0
	notWaiting   = 0
)
