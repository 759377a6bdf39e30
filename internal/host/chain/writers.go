package chain

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Times to wait for a file that is still open for writing. While this daemon starts a process, that
// process has copies of all of the daemon's descriptors until it executes its program. That takes
// some milliseconds on an idle host.
const (
	WriterPatience = 5 * time.Second
	writerPause    = 2 * time.Millisecond
)

// NoWriters waits until no process has the file open for writing, or mapped for writing. It returns
// an error if a process still has the file open or mapped after the given duration.
func NoWriters(path string, patience time.Duration) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for end := time.Now().Add(patience); hasWriter(f); time.Sleep(writerPause) {
		if time.Now().After(end) {
			return fmt.Errorf("%s is open for writing by its VMM, which was to close it: end the sandbox, and do not trust it",
				path)
		}
	}
	return nil
}

// hasWriter reports whether a process has the file open for writing. It asks Linux for a read
// lease, and gives the lease back. Linux grants a read lease only if no process has the file open
// for writing (fcntl(2), F_SETLEASE). On a file system without leases, hasWriter returns false.
func hasWriter(f *os.File) bool {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		// an error does no harm, because the lease ends when f is closed
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return err == unix.EAGAIN
}
