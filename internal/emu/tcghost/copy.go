package tcghost

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// CopyIn copies a program of the host, and the directory dataDir if it exists, to a new directory
// that the emulated host can read. It returns the paths of the new directory and of the copied
// program. The paths are the same inside the emulated host. The caller removes the directory.
func (m Machine) CopyIn(program, dataDir string) (dir, path string, _ error) {
	if err := m.makeDir(); err != nil {
		return "", "", err
	}
	if err := os.MkdirAll(m.path(dirRun), 0o700); err != nil {
		return "", "", fmt.Errorf("copy %s into emulated host %s: %w", program, m.Name, err)
	}
	dir, err := os.MkdirTemp(m.path(dirRun), "")
	if err != nil {
		return "", "", fmt.Errorf("copy %s into emulated host %s: %w", program, m.Name, err)
	}
	path = filepath.Join(dir, filepath.Base(program))
	if err := copyInto(dir, path, program, dataDir); err != nil {
		os.RemoveAll(dir)
		return "", "", fmt.Errorf("copy %s into emulated host %s: %w", program, m.Name, err)
	}
	return dir, path, nil
}

func copyInto(dir, path, program, dataDir string) error {
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, data, 0o700); err != nil {
		return err
	}
	err = os.CopyFS(filepath.Join(dir, filepath.Base(dataDir)), os.DirFS(dataDir))
	if errors.Is(err, fs.ErrNotExist) {
		if _, statErr := os.Stat(dataDir); errors.Is(statErr, fs.ErrNotExist) {
			return nil
		}
	}
	return err
}
