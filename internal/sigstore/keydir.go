package sigstore

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	maxKeys = 100 // number of keys in a directory

	// KeySuffix is the end of the names of files with public keys.
	KeySuffix = ".pub"
)

// TrustedKey is a public key in a directory of trusted keys.
type TrustedKey struct {
	Name string // name of the key's file, without KeySuffix
	*PublicKey
}

// ReadKeys returns the keys in a directory, in the order of their names. It returns no key if the
// path is empty or the directory is missing. If a user other than root and the caller can change
// the directory or a key, or if a key is damaged, it returns an error.
func ReadKeys(dir string) ([]TrustedKey, error) {
	if dir == "" {
		return nil, nil
	}
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, err
	}
	st, err := root.Stat(".")
	if err == nil {
		err = checkOwner(dir, st)
	}
	if err != nil {
		return nil, err
	}
	var list []TrustedKey
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), KeySuffix)
		if !ok || name == "" {
			continue
		}
		if len(list) == maxKeys {
			return nil, fmt.Errorf("%s has more than %d keys", dir, maxKeys)
		}
		k, err := readKey(root, e.Name())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, e.Name()), err)
		}
		list = append(list, TrustedKey{name, k})
	}
	return list, nil
}

func readKey(root *os.Root, name string) (*PublicKey, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a FIFO must not block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	if err := checkOwner(name, st); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, MaxKey+1))
	if err != nil {
		return nil, err
	}
	return ParsePublicKey(text)
}

// checkOwner returns an error if a user other than root and the caller can change a file.
func checkOwner(name string, st fs.FileInfo) error {
	const others = 0o022
	uid := int(st.Sys().(*syscall.Stat_t).Uid)
	if uid != 0 && uid != os.Getuid() || st.Mode().Perm()&others != 0 {
		return fmt.Errorf("another user can change %s: it belongs to user %d and has the mode %#o", name, uid,
			st.Mode().Perm())
	}
	return nil
}
