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

// editSettings applies edit to a settings file, and reports whether that changed it. If edit fails,
// or another program keeps changing the file, the file is left unchanged. For a missing file edit
// gets no text.
func editSettings(path string, edit func([]byte) ([]byte, error)) (changed bool, err error) {
	if real, err := filepath.EvalSymlinks(path); err == nil { // keeps a symbolic link in place
		path = real
	}
	for range 3 {
		old, mode, err := readSettings(path)
		if err != nil {
			return false, err
		}
		text, err := edit(old)
		if err != nil {
			return false, fmt.Errorf("%s: left as it is: %w", path, err)
		}
		if bytes.Equal(text, old) {
			return false, nil
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return false, err
		}
		if again, _, err := readSettings(path); err != nil || !bytes.Equal(again, old) {
			continue
		}
		return true, atomicfile.WriteDurable(path, text, mode)
	}
	return false, fmt.Errorf("%s: left as it is: another program keeps changing it", path)
}

// readSettings returns the content and the permissions of a file. For a missing file it returns no
// content and the permissions for a new one.
func readSettings(path string) ([]byte, fs.FileMode, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0o644, nil
	}
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxSettings {
		return nil, 0, fmt.Errorf("%s: left as it is: want a regular file of at most %d bytes", path, maxSettings)
	}
	text, err := os.ReadFile(path)
	return text, info.Mode().Perm(), err
}

// maxSettings bounds a settings file, in bytes. In a project it may be a link to a device.
const maxSettings = 4 << 20
