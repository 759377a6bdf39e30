//go:build !linux

package client

import "os"

// isLocked is false: emulated hosts run on Linux only.
func isLocked(string) bool { return false }

// ownerOf knows no owner: daemons run on Linux only.
func ownerOf(os.FileInfo) (uid int, known bool) { return 0, false }
