// Package atomicfile replaces whole files. A reader finds either the old content or the new content
// of a file, and never a part of it. This also holds for a process that starts after a crash.
//
// It writes a temporary file in the same directory and renames it. It takes no lock. If several
// processes write a file, the last process wins. The package does not replace directories.
package atomicfile

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Write replaces the content of the file at path with data, and sets the permissions of the file to
// mode. If Write fails, the old file is unchanged. Several processes may write the same path at the
// same time. After a power failure, the file may have the old content or be empty; use WriteDurable
// if the content must survive.
//
// A process that is killed in Write leaves a file ".NAME.new-*" beside path; see Clean.
func Write(path string, data []byte, mode fs.FileMode) error {
	return write(path, data, mode, false)
}

// WriteJSON writes v as indented JSON, readable by all users. It creates the directory of the file
// if needed.
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

// WriteDurable is like Write, but once it has returned nil, the new content survives a power
// failure.
func WriteDurable(path string, data []byte, mode fs.FileMode) error {
	if err := write(path, data, mode, true); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WriteDurableIn is like WriteDurable, for a file in the directory of the given os.Root. If name is
// a symbolic link, the link is replaced.
func WriteDurableIn(root *os.Root, name string, data []byte, mode fs.FileMode) error {
	tmp := "." + name + infix + rand.Text()
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	err = finish(f, data, mode, true)
	if err == nil {
		err = root.Rename(tmp, name)
	}
	if err != nil {
		_ = root.Remove(tmp) // ignored, because the first error is reported
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
	f, err := os.CreateTemp(filepath.Clean(dir), "."+name+infix)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	err = finish(f, data, mode, sync)
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // ignored, because the first error is reported
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// finish writes data to a new file and closes it.
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

// Clean removes the temporary files that killed processes have left in a directory. The directory
// need not exist. No process may write a file in it while Clean runs.
func Clean(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if isPart(e.Name()) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// isPart reports whether name has the form of a temporary file: ".NAME.new-" and letters or digits.
func isPart(name string) bool {
	i := strings.LastIndex(name, infix)
	if i < 2 || name[0] != '.' || i+len(infix) == len(name) {
		return false
	}
	return !strings.ContainsFunc(name[i+len(infix):], func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'A' || r > 'Z')
	})
}

// In the name of a temporary file, infix separates the name of the file from the random part.
const infix = ".new-"

// Fill creates or replaces the file at path. It calls fill(tmp), where tmp is the path of a file
// that does not exist. The callback writes the content to a new file at this path. Fill is for
// large files that another program writes or that the kernel copies. The caller ensures that no
// other Fill of path runs at the same time. If Fill fails, the old file is unchanged.
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
		_ = os.Remove(tmp) // ignored, because the first error is reported
		return fmt.Errorf("make %s: %w", path, err)
	}
	return nil
}

// SyncDir flushes a directory to disk. All earlier creations, renamings and removals of files in
// the directory then survive a power failure.
func SyncDir(dir string) error { return SyncFile(dir) }

// SyncFile flushes the content of a file to disk.
func SyncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
