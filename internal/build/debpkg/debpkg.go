// Package debpkg downloads Debian packages and extracts files from them, without installing
// anything. apt-get downloads the packages with the host's own sources, keys and proxies, and
// checks their signatures. dpkg-deb unpacks them.
//
// It needs no root privileges. The caller decides which packages to fetch.
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

// Fetch downloads pkg (from suite, unless suite is empty) and unpacks it into a new directory in
// dir. The caller removes that directory.
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

// DownloadFrom is like Download, but takes the package from another suite of the host's archive,
// such as bookworm-backports. The host's package sources need not contain the suite, and are not
// changed. DownloadFrom leaves the downloaded package lists in dir.
func DownloadFrom(ctx context.Context, dir, suite, pkg string) (deb string, err error) {
	options, err := readLists(ctx, dir, suite)
	if err != nil {
		return "", err
	}
	return download(ctx, dir, pkg, options)
}

// FetchWhole unpacks packages of a suite into a new directory in dir, together with all their
// dependencies including the C library. The caller removes that directory. The suite may belong to
// another Debian release than the host. A dependency is fetched even if its package is installed on
// the host.
func FetchWhole(ctx context.Context, dir, suite string, pkgs ...string) (tree string, err error) {
	fail := func(err error) (string, error) { return "", fmt.Errorf("fetch %s of %s: %w", pkgs[0], suite, err) }
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fail(err)
	}
	if tree, err = os.MkdirTemp(dir, ".staging-*"); err != nil {
		return fail(err)
	}
	if err := fetchWhole(ctx, tree, suite, pkgs); err != nil {
		return fail(errors.Join(err, os.RemoveAll(tree)))
	}
	return tree, nil
}

func fetchWhole(ctx context.Context, tree, suite string, pkgs []string) error {
	options, err := readLists(ctx, tree, suite)
	if err != nil {
		return err
	}
	archives, installed := filepath.Join(tree, "archives"), filepath.Join(tree, "installed")
	if err := errors.Join(os.MkdirAll(filepath.Join(archives, "partial"), 0o755),
		os.WriteFile(installed, nil, 0o644)); err != nil {
		return err
	}
	options = append(options, "-o", "Dir::State::status="+installed, "-o", "Dir::Cache::archives="+archives,
		"-o", "APT::Install-Recommends=0", "-o", "Debug::NoLocking=1", "--yes", "--download-only")
	if err := aptGet(ctx, tree, options, append([]string{"install"}, pkgs...)...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range debs {
		if err := Unpack(ctx, deb, tree); err != nil {
			return err
		}
	}
	return os.RemoveAll(archives)
}

// readLists downloads the package lists of a suite into dir. The returned options make apt-get use
// only these lists.
func readLists(ctx context.Context, dir, suite string) (options []string, err error) {
	uris, err := Run(ctx, "", "apt-get", "indextargets", "--format", "$(REPO_URI)",
		"Created-By: Packages", "Component: main", "Origin: Debian", "Label: Debian")
	if err != nil {
		return nil, fmt.Errorf("find the Debian archive: %w", err)
	}
	uri, _, _ := strings.Cut(uris, "\n")
	if uri == "" {
		return nil, fmt.Errorf("%w in apt's sources", ErrNoArchive)
	}
	lists, sources := filepath.Join(dir, "lists"), filepath.Join(dir, "sources.list")
	line := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", archiveKeys, uri, suite)
	if err := errors.Join(os.Mkdir(lists, 0o755), os.WriteFile(sources, []byte(line), 0o644)); err != nil {
		return nil, fmt.Errorf("read the package list of %s: %w", suite, err)
	}
	options = []string{
		"-o", "Dir::Etc::SourceList=" + sources, "-o", "Dir::Etc::SourceParts=-",
		"-o", "Dir::State::Lists=" + lists, "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=",
		"-o", "Acquire::http::Timeout=20", "-o", "Acquire::Retries=0", "-o", "Acquire::Languages=none",
	}
	if err := aptGet(ctx, dir, options, "update", "--error-on=any"); err != nil {
		return nil, fmt.Errorf("read the package list of %s: %w", suite, err)
	}
	return options, nil
}

// ErrNoArchive means that Debian's own archive is not among the host's package sources, for example
// because the host runs another distribution.
var ErrNoArchive = errors.New("there is no Debian archive")

// archiveKeys is the key ring of the Debian archive (package debian-archive-keyring, which every
// Debian host has).
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
		// The user _apt may not be able to write to dir.
		args = slices.Concat([]string{"-o", "APT::Sandbox::User=root"}, args)
	}
	_, err := Run(ctx, dir, "apt-get", args...)
	return err
}

// Unpack extracts the files of the package deb into the directory with the path tree. It creates
// the directory if needed.
func Unpack(ctx context.Context, deb, tree string) error {
	if _, err := Run(ctx, "", "dpkg-deb", "--extract", deb, tree); err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
	}
	return nil
}

// Take moves a file or directory of an unpacked package to another place on the same file system.
// From Debian 13 on, packages keep all files below usr, so Take also looks for the name in that
// directory.
func Take(tree, name, to string) error {
	err := os.Rename(filepath.Join(tree, name), to)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.Rename(filepath.Join(tree, "usr", name), to)
	}
	return err
}

// Run runs a tool of the distribution, with dir as its working directory (empty: the current
// directory), and returns its standard output. Cancelling ctx kills the tool and its child
// processes.
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

// CompareVersions orders names that differ only in their numbers: 6.12.9 comes before 6.12.117.
func CompareVersions(a, b string) int {
	return slices.CompareFunc(number.FindAllString(a, -1), number.FindAllString(b, -1), func(x, y string) int {
		i, _ := strconv.ParseUint(x, 10, 64) // x consists of digits; a number that overflows becomes the largest uint64
		j, _ := strconv.ParseUint(y, 10, 64)
		return cmp.Compare(i, j)
	})
}
