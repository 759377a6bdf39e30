package vault

import (
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/crypt"
)

// KeysOf returns the IDs of the keys that the encrypted files in a directory name. It is for snapshots
// whose record of keys is lost or damaged. Files that cannot be read are ignored.
func KeysOf(dir string) (ids []string) {
	files, _ := os.ReadDir(dir) // without filepath.Glob, because the path may have brackets
	for _, file := range files {
		if filepath.Ext(file.Name()) != crypt.Suffix {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, file.Name()), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		r, err := crypt.NewReader(io.NewSectionReader(f, 0, 1<<62))
		if err == nil && crypt.CheckID(r.KeyID) == nil {
			ids = append(ids, r.KeyID)
		}
		f.Close()
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
