package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/cleanup"
)

// lockPoll is how often a waiting build retries the lock.
const lockPoll = 100 * time.Millisecond

// A published directory has siblings: its lock file, and the staging directory for a new build of
// it.
const (
	lockSuffix    = ".lock"
	stagingSuffix = ".staging"
)

// publish creates the directory parent/name. It calls fill(staging), where staging is an empty
// staging directory next to parent/name, and then renames the staging directory to parent/name. If
// parent/name already exists, or appears while publish waits for another process that creates it,
// publish does not call fill. If publish has to wait, it calls waiting() once.
//
// A process that is killed in fill leaves its staging directory. The next publish of the same name
// removes that directory.
func publish(ctx context.Context, parent, name string, waiting func(), fill func(staging string) error) error {
	final := filepath.Join(parent, name)
	if _, err := os.Stat(final); err == nil {
		return nil
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	unlock, err := lock(ctx, filepath.Join(parent, "."+name+lockSuffix), waiting)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(final); err == nil {
		return nil
	}
	staging := filepath.Join(parent, "."+name+stagingSuffix)
	if err := removeTree(staging); err != nil {
		return fmt.Errorf("remove what an interrupted build left: %w", err)
	}
	if err := os.Mkdir(staging, 0o700); err != nil {
		return err
	}
	var undo cleanup.Stack
	defer undo.Run()
	undo.Add(func() { _ = removeTree(staging) }) // after an error, the next build removes the directory
	if err := fill(staging); err != nil {
		return err
	}
	if err := syncTree(staging); err != nil {
		return err
	}
	if err := os.Chmod(staging, 0o755); err != nil {
		return err
	}
	if err := os.Rename(staging, final); err != nil {
		return err
	}
	undo.Release()
	return syncPath(parent)
}

// lock locks the lock file with the given path. It waits while another process or goroutine holds
// the lock. The file is removed on unlock, so that the cache does not collect a lock file for each
// image ever built.
func lock(ctx context.Context, name string, waiting func()) (unlock func(), err error) {
	for first := true; ; first = false {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && sameFile(f, name) {
			return func() {
				_ = os.Remove(name) // before the lock is released; see sameFile
				_ = f.Close()
			}, nil
		}
		f.Close()
		if err == nil || errors.Is(err, unix.EINTR) {
			continue
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		if first && waiting != nil {
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}

// sameFile reports whether name is still the path of the locked file f. If the last holder of the
// lock removed the file between our open and our lock, our lock guards nothing.
func sameFile(f *os.File, name string) bool {
	have, err := f.Stat()
	if err != nil {
		return false
	}
	want, err := os.Stat(name)
	return err == nil && os.SameFile(have, want)
}

func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() || d.Type().IsRegular() {
			return syncPath(name)
		}
		return nil
	})
}

func syncPath(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// fileSHA256 returns the digest of a file. It reads at the lowest priority, because reading a disk
// takes minutes.
func fileSHA256(ctx context.Context, name string) (sum string, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), lowestNice)
		sum, err = sha256Of(ctx, name)
	}()
	<-done
	return sum, err
}

// lowestNice is the nice value of the lowest priority, setpriority(2).
const lowestNice = 19

func sha256Of(ctx context.Context, name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	for buf := make([]byte, 1<<20); ; {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		n, err := f.Read(buf)
		h.Write(buf[:n])
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
