package chain

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// How long to wait for a file that is still open for writing. A process that this daemon is
// starting has copies of all of its descriptors until it executes its program, for some
// milliseconds on an idle host.
const (
	WriterPatience = 5 * time.Second
	writerPause    = 2 * time.Millisecond
)

// NoWriters returns an error if, after patience, a process still has a file open for writing, or
// mapped.
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

// hasWriter asks Linux for a read lease, which it grants only if no process has the file open for
// writing (fcntl(2), F_SETLEASE), and returns the lease. On a file system without leases it returns
// false.
func hasWriter(f *os.File) bool {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK) // the lease also ends when f is closed
	}
	return err == unix.EAGAIN
}
