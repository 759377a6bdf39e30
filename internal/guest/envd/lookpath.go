package envd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// lookPath finds a command as a shell does. If the command contains a slash, its path is relative
// to the directory of the process. Otherwise lookPath searches the PATH in the process's
// environment.
func lookPath(cmd, dir string, env []string) (string, error) {
	if strings.Contains(cmd, "/") {
		if !filepath.IsAbs(cmd) {
			cmd = filepath.Join(dir, cmd)
		}
		return cmd, executable(cmd)
	}
	var path string
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	found := error(syscall.ENOENT)
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		full := filepath.Join(d, cmd)
		err := executable(full)
		if err == nil {
			return full, nil
		}
		if errors.Is(err, syscall.EACCES) {
			found = err
		}
	}
	return "", found
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.IsDir() || info.Mode().Perm()&0o111 == 0 {
		return syscall.EACCES
	}
	return nil
}
