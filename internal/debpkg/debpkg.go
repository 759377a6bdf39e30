// Package debpkg gets Debian packages and takes files out of them without installing anything: apt-get downloads, with
// the host's own sources, keys and proxies, and checks the signatures; dpkg-deb unpacks.
//
// It needs no root. What the packages are for, and which of them is wanted, is the caller's business.
package debpkg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Fetch downloads pkg as Download does, or as DownloadFrom if suite is not empty, and unpacks it into a new directory in
// dir, which the caller removes.
func Fetch(ctx context.Context, dir, suite, pkg string) (tree string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("fetch %s: %w", pkg, err)
	}
	if tree, err = os.MkdirTemp(dir, ".staging-*"); err != nil {
		return "", fmt.Errorf("fetch %s: %w", pkg, err)
	}
	var deb string
	if suite == "" {
		deb, err = Download(ctx, tree, pkg)
	} else {
		deb, err = DownloadFrom(ctx, tree, suite, pkg)
	}
	if err == nil {
		err = Unpack(ctx, deb, tree)
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(tree))
	}
	return tree, nil
}

// Download puts the newest version of pkg into dir and returns the path of the package file.
func Download(ctx context.Context, dir, pkg string) (deb string, err error) {
	if deb, err = download(ctx, dir, pkg, nil); err != nil {
		return "", fmt.Errorf("%w (run `apt-get update` if the package lists are old)", err)
	}
	return deb, nil
}

// DownloadFrom is Download from one suite, such as bookworm-backports, of the archive from which the host has the release
// that it belongs to. The host's sources need not name the suite, and are not changed. It leaves package lists in dir.
func DownloadFrom(ctx context.Context, dir, suite, pkg string) (deb string, err error) {
	codename, _, _ := strings.Cut(suite, "-")
	uris, err := Run(ctx, "", "apt-get", "indextargets", "--format", "$(REPO_URI)",
		"Created-By: Packages", "Component: main", "Codename: "+codename)
	if err != nil {
		return "", fmt.Errorf("find the Debian archive: %w", err)
	}
	uri, _, _ := strings.Cut(uris, "\n")
	if uri == "" {
		return "", fmt.Errorf("find the Debian archive: apt has no source for %s main", codename)
	}
	lists, sources := filepath.Join(dir, "lists"), filepath.Join(dir, "sources.list")
	line := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", archiveKeys, uri, suite)
	if err := errors.Join(os.Mkdir(lists, 0o755), os.WriteFile(sources, []byte(line), 0o644)); err != nil {
		return "", fmt.Errorf("download %s: %w", pkg, err)
	}
	options := []string{
		"-o", "Dir::Etc::SourceList=" + sources, "-o", "Dir::Etc::SourceParts=-",
		"-o", "Dir::State::Lists=" + lists, "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=",
		"-o", "Acquire::http::Timeout=20", "-o", "Acquire::Retries=0", "-o", "Acquire::Languages=none",
	}
	if err := aptGet(ctx, dir, options, "update", "--error-on=any"); err != nil {
		return "", fmt.Errorf("read the package list of %s: %w", suite, err)
	}
	return download(ctx, dir, pkg, options)
}

// archiveKeys are the keys of the Debian archive, which every Debian host has (package debian-archive-keyring).
const archiveKeys = "/usr/share/keyrings/debian-archive-keyring.gpg"

func download(ctx context.Context, dir, pkg string, options []string) (deb string, err error) {
	if err := aptGet(ctx, dir, options, "download", pkg); err != nil {
		return "", fmt.Errorf("download %s: %w", pkg, err)
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("download %s: got %d files, want one package (%v)", pkg, len(debs), err)
	}
	return debs[0], nil
}

func aptGet(ctx context.Context, dir string, options []string, args ...string) error {
	args = slices.Concat([]string{"-q"}, options, args)
	if os.Geteuid() == 0 {
		args = slices.Concat([]string{"-o", "APT::Sandbox::User=root"}, args) // the user _apt may not be able to write here
	}
	_, err := Run(ctx, dir, "apt-get", args...)
	return err
}

// Unpack puts the files of a package below tree, which need not exist.
func Unpack(ctx context.Context, deb, tree string) error {
	if _, err := Run(ctx, "", "dpkg-deb", "--extract", deb, tree); err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
	}
	return nil
}

// Take moves a file or directory of an unpacked package to another place on the same file system. Since Debian 13
// packages have everything below usr: name is looked for there too.
func Take(tree, name, to string) error {
	err := os.Rename(filepath.Join(tree, name), to)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.Rename(filepath.Join(tree, "usr", name), to)
	}
	return err
}

// Run runs a tool of the distribution in dir (empty: the current directory) and returns what it wrote to its standard
// output. Cancelling ctx ends it and its children.
func Run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return "", fmt.Errorf("%s: %w", name, context.Cause(ctx))
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

var number = regexp.MustCompile(`[0-9]+`)

// CompareVersions orders names that differ only in their numbers: 6.12.9 is before 6.12.117.
func CompareVersions(a, b string) int {
	return slices.CompareFunc(number.FindAllString(a, -1), number.FindAllString(b, -1), func(x, y string) int {
		i, _ := strconv.ParseUint(x, 10, 64) // digits only; one that overflows is the largest number
		j, _ := strconv.ParseUint(y, 10, 64)
		return cmp.Compare(i, j)
	})
}
