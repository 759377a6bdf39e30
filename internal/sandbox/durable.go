package sandbox

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
)

// writeDurable puts v into a file as JSON. The file has its old content or the new one, and a power failure does not
// take back what has been written.
func writeDurable(path string, v any) error {
	p, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(p)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
