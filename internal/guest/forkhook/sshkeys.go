package forkhook

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const sshKeygen = "ssh-keygen"

// replaceSSHKeys gives the guest one Ed25519 host key in place of those it shares with its
// siblings, if it has any. Making one takes milliseconds, an RSA key takes up to seconds: those go
// without a successor.
func (h *Hooks) replaceSSHKeys(deadline time.Time) error {
	old, err := filepath.Glob(filepath.Join(h.sshDir, "ssh_host_*_key"))
	if err != nil || len(old) == 0 {
		return err
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

// find looks for a program in the PATH of the hooks.
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
