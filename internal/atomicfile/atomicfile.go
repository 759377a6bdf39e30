// Package atomicfile replaces whole files: a reader, and a process that starts after a crash, finds
// the old content or the new one and never a part of it.
//
// It does so by writing a temporary file in the same directory and renaming it. It neither locks,
// so of two writers the last one wins, nor makes directories, nor publishes directories as a whole.
package atomicfile

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces the file path by data, with exactly the permissions mode. A power failure may
// still take the new content back, or leave an empty file; WriteDurable is for what must outlive
// one. When Write fails, the old file is as it was. Any number of processes may write one path at
// once.
//
// A process that is killed in Write leaves a file ".NAME.new-*" beside path.
func Write(path string, data []byte, mode fs.FileMode) error {
	return write(path, data, mode, false)
}

// WriteJSON writes v as indented JSON, readable by all users, and makes the directory of path.
func WriteJSON(path string, v any) error {
	p, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return Write(path, append(p, '\n'), 0o644)
}

// WriteDurable is Write, and once it has returned nil a power failure does not take the new content
// back.
func WriteDurable(path string, data []byte, mode fs.FileMode) error {
	if err := write(path, data, mode, true); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WriteDurableIn is WriteDurable for a file in the directory root. If name is a symbolic link, the
// file replaces the link.
func WriteDurableIn(root *os.Root, name string, data []byte, mode fs.FileMode) error {
	tmp := "." + name + ".new-" + rand.Text()
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	err = finish(f, data, mode, true)
	if err == nil {
		err = root.Rename(tmp, name)
	}
	if err != nil {
		_ = root.Remove(tmp) // the first error is the one to report
		return fmt.Errorf("write %s: %w", name, err)
	}
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func write(path string, data []byte, mode fs.FileMode, sync bool) error {
	dir, name := filepath.Split(path)
	f, err := os.CreateTemp(filepath.Clean(dir), "."+name+".new-")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	err = finish(f, data, mode, sync)
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error is the one to report
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// finish writes and closes a new file.
func finish(f *os.File, data []byte, mode fs.FileMode, sync bool) error {
	_, err := f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil && sync {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Fill makes the file path out of what fill puts into the file tmp, which does not exist when fill
// is called: it is for large files that another program or a copy inside the kernel makes. The
// caller sees to it that no other Fill of path runs at the same time. When Fill fails, the old file
// is as it was.
//
// A process that is killed in Fill leaves the file path+".new", and the next Fill of path removes
// it.
func Fill(path string, fill func(tmp string) error) error {
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("make %s: %w", path, err)
	}
	err := fill(tmp)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp) // the first error is the one to report
		return fmt.Errorf("make %s: %w", path, err)
	}
	return nil
}

// SyncDir makes the names in a directory outlive a power failure: files that were made, renamed or
// removed there.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
