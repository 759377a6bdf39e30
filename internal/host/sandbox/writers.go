package sandbox

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// noWriters fails where anybody has a file open for writing, or mapped. Linux gives a lease for
// reading only where nobody has (fcntl(2), F_SETLEASE); it is given back at once. A file system
// without leases tells nothing.
func noWriters(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	switch _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err {
	case nil:
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
		return err
	case unix.EAGAIN:
		return fmt.Errorf("%s is open for writing by its VMM, which was to close it: end the sandbox, and do not trust it", path)
	}
	return nil
}

// refuseWriters makes sure that nobody can change state and memory any more: a VMM that its guest
// has taken over could have kept what it wrote them with.
func (b *branch) refuseWriters() error {
	for _, f := range []*os.File{b.state, b.layer} {
		_ = f.Close() // nothing was buffered that could fail to be written
		if err := noWriters(f.Name()); err != nil {
			return err
		}
	}
	return nil
}
