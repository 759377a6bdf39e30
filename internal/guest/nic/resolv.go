package nic

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/frame"
)

// Paths of the file that names DNS servers, and of the file that is mounted over it if the disk is
// read-only.
const (
	resolvPath    = "/etc/resolv.conf"
	resolvRunPath = "/run/forkd/resolv.conf"
)

const resolvConf = "# by forkd: the image names no server that a guest could ask\nnameserver " + frame.Gateway + "\n"

// Resolver makes the gateway the DNS server in /etc/resolv.conf. It does nothing if the image's
// file already names a server outside the guest.
func Resolver() error {
	if err := setResolver(resolvPath, resolvRunPath); err != nil {
		return fmt.Errorf("name server: %w", err)
	}
	return nil
}

// setResolver replaces the file at path with a file that names the gateway. If the old file already
// names a server, setResolver does nothing. If path is on a read-only file system, setResolver
// writes the new file to the path in run, and mounts this file over path.
func setResolver(path, run string) error {
	text, err := os.ReadFile(path) // follows a symbolic link, whose target may be missing
	if err == nil && namesServer(string(text)) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = replace(path)
	if !errors.Is(err, unix.EROFS) {
		return err
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(run), 0o755), os.WriteFile(run, []byte(resolvConf),
		0o644)); err != nil {
		return err
	}
	if err := unix.Mount(run, path, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "mount over", Path: path, Err: err}
	}
	return nil
}

// replace replaces path, which may be a symbolic link, with a regular file.
func replace(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temporary := path + ".forkd"
	if err := os.WriteFile(temporary, []byte(resolvConf), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// namesServer reports whether a resolv.conf(5) names an IPv4 server outside the guest. A server
// inside the guest does not count, because it does not run yet. A user who starts such a server
// also writes a resolv.conf.
func namesServer(text string) bool {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		a, err := netip.ParseAddr(words[1])
		if err == nil && a.Is4() && !a.IsLoopback() && !a.IsUnspecified() {
			return true
		}
	}
	return false
}
