package client

import (
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// isLocked reports whether some process holds the lock of a file. It does not take the lock.
func isLocked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock) == nil && lock.Type != unix.F_UNLCK
}

// ownerOf returns the user that a file belongs to.
func ownerOf(s os.FileInfo) (uid int, known bool) {
	stat, ok := s.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(stat.Uid), true
}
