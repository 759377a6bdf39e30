package chain

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// How long a file is waited for that is still open for writing. A process that this daemon starts
// meanwhile has copies of all of its descriptors until it runs its program: some milliseconds on an
// idle host.
const (
	WriterPatience = 5 * time.Second
	writerPause    = 2 * time.Millisecond
)

// NoWriters fails where anybody has a file open for writing, or mapped, and keeps it so for as long
// as patience.
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

// hasWriter asks Linux for a lease for reading, which it gives only where nobody has the file open
// for writing (fcntl(2), F_SETLEASE), and gives it back. A file system without leases tells
// nothing.
func hasWriter(f *os.File) bool {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK) // it goes with f in any case
	}
	return err == unix.EAGAIN
}
