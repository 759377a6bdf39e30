package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/atomicfile"
)

// settingsFile reads and replaces a settings file. If the file is missing, read returns no content
// and the permissions for a new file.
type settingsFile struct {
	path  string
	read  func() ([]byte, fs.FileMode, error)
	write func([]byte, fs.FileMode) error
}

// edit replaces the content of the file with the result of change, and reports whether the content
// differs. If the file is missing, change receives no text. If change returns an error, or if
// another program keeps changing the file, edit does not write to the file.
func (f settingsFile) edit(change func([]byte) ([]byte, error)) (changed bool, err error) {
	for range 3 {
		old, mode, err := f.read()
		if err != nil {
			return false, err
		}
		text, err := change(old)
		if err != nil {
			return false, fmt.Errorf("%s: left as it is: %w", f.path, err)
		}
		if bytes.Equal(text, old) {
			return false, nil
		}
		if again, _, err := f.read(); err != nil || !bytes.Equal(again, old) {
			continue
		}
		return true, f.write(text, mode)
	}
	return false, fmt.Errorf("%s: left as it is: another program keeps changing it", f.path)
}

// ownSettings returns a file of the user's own settings. If the file is a symbolic link, edit
// changes the link's target.
func ownSettings(path string) settingsFile {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return settingsFile{
		path: path,
		read: func() ([]byte, fs.FileMode, error) { return readSettings(path, path, os.Stat, os.ReadFile) },
		write: func(text []byte, mode fs.FileMode) error {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			return atomicfile.WriteDurable(path, text, mode)
		},
	}
}

// projectSettings returns the settings file with the given name in the directory of a project. It
// neither reads nor writes through a symbolic link, because the author of the project is not
// trusted.
func projectSettings(project *os.Root, name string) settingsFile {
	path := filepath.Join(project.Name(), name)
	return settingsFile{
		path: path,
		read: func() ([]byte, fs.FileMode, error) {
			if err := refuseLinks(project, name); err != nil {
				return nil, 0, err
			}
			return readSettings(path, name, project.Stat, project.ReadFile)
		},
		write: func(text []byte, mode fs.FileMode) error {
			if err := project.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				return err
			}
			dir, err := project.OpenRoot(filepath.Dir(name))
			if err != nil {
				return err
			}
			defer dir.Close()
			return atomicfile.WriteDurableIn(dir, filepath.Base(name), text, mode)
		},
	}
}

// refuseLinks returns an error if name, or a directory of its path, is a symbolic link.
func refuseLinks(project *os.Root, name string) error {
	for i, c := range name + string(filepath.Separator) {
		if c != filepath.Separator {
			continue
		}
		info, err := project.Lstat(name[:i])
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return fmt.Errorf("--project: %s is a symbolic link, which may lead out of the project: "+
				"put a file or a directory in its place", filepath.Join(project.Name(), name[:i]))
		}
	}
	return nil
}

// readSettings returns the content and the permissions of the file with the given name. An error
// about the type or the size of the file names the file by the given path.
func readSettings(path, name string, stat func(string) (fs.FileInfo, error),
	readFile func(string) ([]byte, error)) ([]byte, fs.FileMode, error) {
	info, err := stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0o644, nil
	}
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxSettings {
		return nil, 0, fmt.Errorf("%s: left as it is: want a regular file of at most %d bytes", path, maxSettings)
	}
	text, err := readFile(name)
	return text, info.Mode().Perm(), err
}

// maxSettings bounds a settings file, in bytes.
const maxSettings = 4 << 20
