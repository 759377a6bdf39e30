package apirig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// FilesEnv is an environment variable that holds the directory with an agent's private files.
const FilesEnv = "FORKD_TEST_AGENT_FILES"

// files keeps the private files of guests (see Options.Private): each guest and each snapshot has a
// directory of its own. It implements vmfake.Files.
type files struct {
	dir     string
	changed func(vm string) // called when the files of a guest have been replaced

	mu   sync.Mutex
	vms  map[string]string // directories of guests, by the directories of their VMs
	made int               // number of directories so far
}

// of(vm) returns the directory of a guest. The first call makes the directory.
func (f *files) of(vm string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if own, ok := f.vms[vm]; ok {
		return own, nil
	}
	own := f.nextLocked()
	f.setLocked(vm, own)
	return own, os.MkdirAll(own, 0o755)
}

// Save copies the files of a guest. The name of the copy is its path.
func (f *files) Save(vm string) (string, error) {
	own, err := f.of(vm)
	if err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	saved := f.nextLocked()
	return saved, copyTree(own, saved)
}

// Load gives a guest a copy of saved files. Files that the guest had are removed.
func (f *files) Load(vm, saved string) error {
	f.mu.Lock()
	old, own := f.vms[vm], f.nextLocked()
	f.setLocked(vm, own)
	err := copyTree(saved, own)
	f.mu.Unlock()
	if old != "" {
		f.changed(vm)
		err = errors.Join(err, os.RemoveAll(old))
	}
	return err
}

func (f *files) nextLocked() string {
	f.made++
	return filepath.Join(f.dir, fmt.Sprint(f.made))
}

func (f *files) setLocked(vm, own string) {
	if f.vms == nil {
		f.vms = make(map[string]string)
	}
	f.vms[vm] = own
}

// copyTree copies a directory with modes, times and links. If the file system allows it, copies
// share extents with the originals.
func copyTree(from, to string) error {
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("%s is in the way", to), err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if said, err := exec.Command("cp", "-a", "--reflink=auto", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w: %s", err, said)
	}
	return nil
}
