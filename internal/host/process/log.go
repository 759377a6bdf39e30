package process

import (
	"bytes"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// logSize bounds a process's output to its standard error, in bytes. A panic of Go lists all
// goroutines first and the registers last; ten thousand goroutines are about 4 MiB.
const logSize = 16 << 20

// newLog makes a file in memory for the standard error of a process. It takes no memory before it
// is written, and its size is fixed.
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

// findLog opens the standard error of a process that an earlier daemon started. It returns nil if
// that is not permitted, or if the process has replaced it.
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

// keptOfLog is how much is kept of each end of a log, in bytes. After a Go program died of a
// signal, the signal is at the beginning of the log and the registers are at the end. The bound
// matters because exited sandboxes stay listed for any time, and their guest may have written the
// log of their VMM.
const keptOfLog = 16 << 10

// logGap stands for the omitted part of a log.
const logGap = "\n[...]\n"

// readLog returns the text in f up to the first hole; of a long log, both ends. It never holds much
// more than that in memory.
func readLog(f *os.File) string {
	var text []byte // the beginning, and the end of the text read so far
	cut := false
	chunk := make([]byte, keptOfLog)
	for at := int64(0); at < logSize; at += keptOfLog {
		n, _ := f.ReadAt(chunk, at) // an error if there is none
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
