package writers

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/host/writers/writertest"
)

func TestMain(m *testing.M) { os.Exit(writertest.Main(m)) }

// The function None detects a process that can still write to a file, through a descriptor or through
// a mapping that outlives the descriptor.
func TestWritersAreFound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := None(path, Patience); err != nil {
		t.Errorf("no process writes to it: %v", err)
	}
	writer, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if None(path, 0) == nil {
		t.Error("a descriptor for writing was not found")
	}
	mapped, err := unix.Mmap(int(writer.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	if None(path, 0) == nil {
		t.Error("a mapping for writing was not found")
	}
	if err := unix.Munmap(mapped); err != nil {
		t.Fatal(err)
	}
	if err := None(path, Patience); err != nil {
		t.Errorf("no process writes to it any more: %v", err)
	}
}

// A process that is being started has copies of the daemon's descriptors until it executes its
// program. If the daemon closes a file at that time, None waits until these copies are gone, and
// returns no error.
func TestWritersThatGoAreWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	writer, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { writer.Close() })
	if err := None(path, time.Hour); err != nil {
		t.Error(err)
	}
}

// RemoveAll removes all files except the files that a process can write to.
func TestFilesWithWritersStay(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	sub := filepath.Join(dir, "sub")
	if err := os.MkdirAll(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"free", "sub/free", "sub/held"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600), os.Symlink("/etc", filepath.Join(dir, "link")),
		os.Symlink("gone", filepath.Join(dir, "dangling"))); err != nil {
		t.Fatal(err)
	}
	held := filepath.Join(sub, "held")
	f, err := os.OpenFile(held, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var found *Error
	if err := RemoveAll(dir, time.Millisecond); !errors.As(err, &found) || found.Path != held {
		t.Errorf("RemoveAll: %v, want an *Error for %s", err, held)
	}
	if err := Remove(held, 0); !errors.As(err, &found) {
		t.Errorf("Remove: %v, want an *Error", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "sub" {
		t.Errorf("left in the directory: %v %v, want only sub", left, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := errors.Join(RemoveAll(dir, 0), Remove(held, 0)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
	if _, err := os.Lstat("/etc/passwd"); err != nil {
		t.Error(err)
	}
}

// A blocked write is found immediately, and its file is not touched.
func TestABlockedWriteBlocksOnlyItsProcess(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	blocked := writertest.Block(t, f)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var l Leftovers
	if err := l.Remove(dir, 0); err != nil {
		t.Fatal(err)
	}
	l.Retry()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the file with a writer: %v", err)
	}
	if err := blocked.Close(); err != nil {
		t.Fatal(err)
	}
	l.Retry()
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the end of the writer the directory is there: %v", err)
	}
	if len(l.paths) != 0 {
		t.Errorf("still in the list: %q", l.paths)
	}
}

// Without another call, a file is removed some seconds after its writer has closed it.
func TestLeftoversTryAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "state")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		var l Leftovers
		if err := l.Remove(path, 0); err != nil {
			t.Fatal(err)
		}
		exists := func(want bool) {
			t.Helper()
			time.Sleep(retryPause + time.Millisecond)
			synctest.Wait()
			if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) == want {
				t.Errorf("%v, want that the file exists: %t", err, want)
			}
		}
		exists(true)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		exists(false)
		l.Close()
		if l.timer != nil {
			t.Error("another attempt is due after the end")
		}
	})
}
