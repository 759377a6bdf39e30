package process

import (
	"bytes"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// logSize is the default maximum size of a process's standard error, in bytes. When a Go program
// panics, it prints all goroutines first and the registers last. Ten thousand goroutines make about
// 4 MiB.
const logSize = 16 << 20

// newLog returns a file in memory for the standard error of a process. The file has a fixed size,
// but only the written part takes memory.
func newLog(name string, size int64) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // the kernel is older than Linux 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "log of "+name)
	if err := f.Truncate(size); err != nil {
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

// findLog opens the standard error of a process that an earlier daemon has started. It returns nil
// if the daemon may not open the file, or if the process has replaced its standard error.
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

// keptOfLog is the number of bytes that are kept from the beginning of a log, and also from its
// end. If a signal has killed a Go program, the beginning names the signal, and the end has the
// registers. The bound is needed because exited sandboxes stay in lists for an unlimited time, and
// a compromised VMM can write any text to its log.
const keptOfLog = 16 << 10

// logGap replaces the omitted part of a log.
const logGap = "\n[...]\n"

// readLog returns the text in f up to the first hole. If the text is long, readLog returns only its
// beginning and its end, and holds little more than these two parts in memory.
func readLog(f *os.File) string {
	var text []byte // the beginning of the text, and the end of what was read so far
	cut := false
	chunk := make([]byte, keptOfLog)
	for at := int64(0); at < logSize; at += keptOfLog {
		n, _ := f.ReadAt(chunk, at) // at the end of f, n is 0
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
