package agent

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLocks bounds how much of the kernel's list of locks is read, in bytes.
const maxLocks = 1 << 20

// makeBusyFile creates the file that programs of all accounts may lock.
func makeBusyFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o666)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o666), f.Close()) // Chmod is needed, because the umask has removed bits
}

// isLocked reports whether a program holds a lock on a file, by flock(2) or fcntl(2). It reads the
// kernel's list of locks, because an attempt of the agent to lock the file could make a program's
// own attempt fail.
func isLocked(path, locks string) (bool, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); errors.Is(err, unix.ENOENT) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("stat %s: %w", path, err)
	}
	f, err := os.Open(locks)
	if err != nil {
		return false, err
	}
	defer f.Close()
	dev := uint64(st.Dev)
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(dev), unix.Minor(dev), st.Ino)
	lines := bufio.NewScanner(io.LimitReader(f, maxLocks))
	for lines.Scan() {
		// A line is, for example, "1: FLOCK ADVISORY WRITE 594 00:1a:3 0 EOF" (proc_locks(5)). If the
		// program still waits for the lock, the second column is "->".
		words := strings.Fields(lines.Text())
		if len(words) > 5 && words[5] == file && (words[1] == "FLOCK" || words[1] == "POSIX" || words[1] == "OFDLCK") {
			return true, nil
		}
	}
	return false, lines.Err()
}
