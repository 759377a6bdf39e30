package forkhook

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/rawcall"
)

const sshKeygen = "ssh-keygen"

// keyless remembers that a directory had no host keys when it was last searched. An image with an
// SSH client has this directory, and its forked sandboxes need not search the directory again. Each
// search would copy 350 KiB of a sandbox's memory.
type keyless struct {
	inode  uint64
	change unix.Timespec // ctime of the directory: it changes when a file is added or removed
}

// reliableAge is how old the latest change of a directory must be for its ctime to be reliable. The
// kernel gives two changes within one tick the same time, so a younger ctime may hide a second
// change.
const reliableAge = time.Second

// remember stores the state of dir after a search that found no keys.
func (k *keyless) remember(dir string) {
	var info unix.Stat_t
	*k = keyless{}
	if rawcall.Stat(dir, &info) == nil && time.Since(time.Unix(info.Ctim.Unix())) > reliableAge {
		*k = keyless{info.Ino, info.Ctim}
	}
}

// changed reports whether the directory exists and has changed since remember was called.
func (k *keyless) changed(dir string) bool {
	var info unix.Stat_t
	return rawcall.Stat(dir, &info) == nil && (keyless{info.Ino, info.Ctim}) != *k
}

// replaceSSHKeys replaces the SSH host keys with one new Ed25519 key, because the guest shares the
// old keys with its siblings. It does nothing in a guest without host keys. It makes no RSA key,
// because making an RSA key can take seconds instead of milliseconds.
func (h *Hooks) replaceSSHKeys(deadline time.Time) error {
	old, err := filepath.Glob(filepath.Join(h.sshDir, "ssh_host_*_key"))
	if err != nil {
		return err
	}
	if len(old) == 0 {
		h.keyless.remember(h.sshDir)
		return nil
	}
	keygen, err := h.find(sshKeygen)
	if err != nil {
		return err
	}
	made, key := filepath.Join(h.sshDir, ".forkd_host_key"), filepath.Join(h.sshDir, "ssh_host_ed25519_key")
	for _, path := range []string{made, made + ".pub"} {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	if err := h.run(deadline, keygen, "-q", "-t", "ed25519", "-N", "", "-C", "root@"+host, "-f", made); err != nil {
		return err
	}
	for _, path := range old {
		for _, path := range []string{path, path + ".pub"} {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	if err := os.Rename(made+".pub", key+".pub"); err != nil {
		return err
	}
	return os.Rename(made, key)
}

// find searches the PATH of the hooks' environment for a program, and returns the program's path.
func (h *Hooks) find(name string) (string, error) {
	for _, kv := range h.environ() {
		dirs, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(dirs) {
			if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("the guest has no %s; remove /etc/ssh/ssh_host_* from the image or install it", name)
}
