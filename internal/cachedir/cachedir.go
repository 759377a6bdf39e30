// Package cachedir returns the directory for files that forkd can recreate: kernels, images, and
// the state of the emulated host. It creates nothing.
package cachedir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Dir returns the cache directory as an absolute path: $FORKD_CACHE, or else $XDG_CACHE_HOME/forkd,
// or else ~/.cache/forkd. A relative $FORKD_CACHE is an error, because processes with different
// working directories use the cache.
func Dir() (string, error) { return fromEnv(os.Getenv) }

func fromEnv(getenv func(string) string) (string, error) {
	if dir := getenv("FORKD_CACHE"); dir != "" {
		if !filepath.IsAbs(dir) {
			return "", fmt.Errorf("FORKD_CACHE=%s is not an absolute path", dir)
		}
		return filepath.Clean(dir), nil
	}
	// The XDG Base Directory specification says that relative values are to be ignored.
	if dir := getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "forkd"), nil
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".cache", "forkd"), nil
	}
	return "", errors.New("no cache directory: set FORKD_CACHE or HOME")
}
