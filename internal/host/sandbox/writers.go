package sandbox

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
	writerPatience = 5 * time.Second
	writerPause    = 2 * time.Millisecond
)

// noWriters fails where anybody has a file open for writing, or mapped, and keeps it so for as long
// as patience.
func noWriters(path string, patience time.Duration) error {
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

// refuseWriters makes sure that nobody can change state, memory and frozen tops any more: a VMM
// that its guest has taken over could have kept what it wrote them with. Tops of earlier branches
// are looked at again, for those branches may have failed before.
//
// Such a VMM is given no more files: each could grow until it ends.
func (b *branch) refuseWriters() error {
	for _, f := range []*os.File{b.state, b.layer} {
		_ = f.Close() // nothing was buffered that could fail to be written
	}
	for _, f := range append([]*os.File{b.state, b.layer}, b.lower...) {
		if err := noWriters(f.Name(), b.m.writers); err != nil {
			b.v.kept = err
			return err
		}
	}
	return nil
}
