package process

import (
	"bytes"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// logSize is the most that a process can write to its standard error, in bytes. A panic of Go lists
// all goroutines first and the registers last; ten thousand goroutines are about 4 MiB.
const logSize = 16 << 20

// newLog makes the standard error of a process: memory that takes no room before it is written, and
// whose size nobody can change.
func newLog(name string) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "log of "+name)
	if err := f.Truncate(logSize); err != nil {
		_ = f.Close()
		return nil, err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS,
		unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("seal it: %w", err)
	}
	return f, nil
}

// findLog opens the standard error of a process that an earlier daemon started; nil, where that is
// not allowed, or the process has put something else in its place.
func findLog(pid int) *os.File {
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/2", pid), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() || st.Size() != logSize {
		_ = f.Close()
		return nil
	}
	return f
}

// keptOfLog is how much is kept of each end of a log, in bytes: of a Go program that a signal
// ended, the signal is at the beginning and the registers are at the end. Sandboxes are listed for
// as long as anybody likes after their VMM has ended, and its log may have been written by their
// guest.
const keptOfLog = 16 << 10

// logGap stands in a log for what is not kept.
const logGap = "\n[...]\n"

// readLog returns what was written to f, up to the first part that was not; of a long log, both
// ends. It never holds much more than that.
func readLog(f *os.File) string {
	var text []byte // the beginning, and the end of what has been read
	cut := false
	chunk := make([]byte, keptOfLog)
	for at := int64(0); at < logSize; at += keptOfLog {
		n, _ := f.ReadAt(chunk, at) // an error, where there is none
		written := bytes.TrimRight(chunk[:n], "\x00")
		text = append(text, written...)
		if more := len(text) - 2*keptOfLog; more > 0 {
			text, cut = slices.Delete(text, keptOfLog, keptOfLog+more), true
		}
		if len(written) < len(chunk) {
			break
		}
	}
	if cut {
		return string(text[:keptOfLog]) + logGap + string(text[keptOfLog:])
	}
	return string(text)
}
