// Package writers finds files that another process can still write to, and removes files only if
// there is no such process.
//
// A VMM is given some files for writing, such as a disk top and the state of a branch. A VMM that
// its guest controls can block a write to such a file for ever: it writes from memory whose page
// faults it does not answer (userfaultfd(2)). During the write, Linux holds the lock of the file. A
// daemon that writes, links, unlinks or truncates the file then waits for the lock, and no signal
// ends the wait, not even SIGKILL. So the daemon does this only if the VMM has ended, or if this
// package finds no writer. A VMM can open no files, so a file without a writer gets no new writer.
package writers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Patience is how long callers usually wait until a file is no longer open for writing; pause is
// the time between two checks. The wait is needed for processes that this daemon is starting: such
// a process has copies of all of the daemon's descriptors until it executes its program, which
// takes some milliseconds on an idle host.
const (
	Patience = 5 * time.Second
	pause    = 2 * time.Millisecond
)

// Error says that a process has a file open for writing.
type Error struct{ Path string }

func (e *Error) Error() string {
	return e.Path + " is open for writing by a process that was to close it: do not trust the sandbox"
}

// None waits until no process has the file open for writing, or mapped for writing. If a process
// still has the file open or mapped after the given time, the error is an *Error.
func None(path string, patience time.Duration) error {
	// Without O_NONBLOCK, opening a FIFO could block. Because of O_NOFOLLOW, opening a symbolic
	// link, which has no writers, is an error. Neither flag changes how a regular file is opened.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for end := time.Now().Add(patience); hasWriter(f); time.Sleep(pause) {
		if time.Now().After(end) {
			return &Error{path}
		}
	}
	return nil
}

// NoneAfter is like None. If a process still has the file open or mapped after the given time,
// NoneAfter calls wait, and looks again.
func NoneAfter(path string, patience time.Duration, wait func()) error {
	err := None(path, patience)
	if errors.As(err, new(*Error)) {
		wait()
		err = None(path, 0)
	}
	return err
}

// hasWriter reports whether a process has the file open for writing. It asks Linux for a read
// lease, and gives the lease back. Linux grants a read lease only if no process has the file open
// for writing (fcntl(2), F_SETLEASE). The system call returns immediately, even if a write to the
// file is blocked. On a file system without leases, hasWriter returns false.
func hasWriter(f *os.File) bool {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		// an error does no harm, because the lease ends when f is closed
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return err == unix.EAGAIN
}

// Remove removes a file if None finds no writer. A file that does not exist is no error.
func Remove(path string, patience time.Duration) error {
	if err := None(path, patience); errors.As(err, new(*Error)) {
		return err
	}
	// Files that cannot be opened, such as sockets and links, have no writers.
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// RemoveAll removes a file, or a directory with all that it contains. It waits for at most the
// given time. If some files have writers, it removes everything else, and the error contains an
// *Error for each of these files.
func RemoveAll(path string, patience time.Duration) error {
	end := time.Now().Add(patience)
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !st.IsDir():
		return Remove(path, patience)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	var all error
	for _, e := range entries {
		all = errors.Join(all, RemoveAll(filepath.Join(path, e.Name()), time.Until(end)))
	}
	if all != nil {
		return all
	}
	return os.Remove(path)
}

// retryPause is the time after which Leftovers tries again by itself.
const retryPause = 10 * time.Second

// Leftovers is a list of files and directories that are to be removed when they have no writers. It
// tries again every ten seconds. The zero value is an empty list. Its methods may be called
// concurrently.
type Leftovers struct {
	mu     sync.Mutex
	paths  []string
	timer  *time.Timer // of the next attempt; nil if none is due
	closed bool
}

// Remove calls RemoveAll. If files stay because they have writers, the path becomes part of the list,
// and Remove returns nil.
func (l *Leftovers) Remove(path string, patience time.Duration) error {
	err := RemoveAll(path, patience)
	if errors.As(err, new(*Error)) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.paths = append(l.paths, path); l.timer == nil && !l.closed {
			l.timer = time.AfterFunc(retryPause, l.Retry)
		}
		return nil
	}
	return err
}

// Retry tries again to remove the paths in the list. It waits for no writer.
func (l *Leftovers) Retry() {
	l.mu.Lock()
	paths := l.paths
	l.paths = nil
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.mu.Unlock()
	for _, path := range paths {
		_ = l.Remove(path, 0) // after another error, the next start tries again
	}
}

// Close tries one last time, and ends the attempts.
func (l *Leftovers) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.Retry()
}
