// Package debqemu finds the QEMU that `forkd machine` runs. It uses the host's QEMU. If the host's
// QEMU is too old, it unpacks a newer QEMU, from the backports of the host's Debian release, into
// the cache.
//
// It installs nothing and needs no root privileges. The unpacked QEMU uses data files and libraries
// of the host's own QEMU package. Package debqemu does not know what QEMU runs.
package debqemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/forkd/forkd/internal/build/debpkg"
)

// Program is the name of the host's QEMU.
const Program = "qemu-system-x86_64"

// Package is the Debian package that contains Program.
const Package = "qemu-system-x86"

// oldest is the first series that is known to be free of two faults of QEMU 7.2 (in target/i386/tcg
// of its source). QEMU 7.2 and this series share a third fault; see mend.go. Because of the two
// faults, VMs in an emulated host occasionally die or hang:
//
//   - VMRUN does not load the interrupt shadow (AMD64 manual volume 2, section 15.21.5). If an
//     interrupt occurs between STI and HLT, HLT waits although it should wake up.
//   - CMPXCHG16B leaves operands of earlier instructions in RFLAGS, including the interrupt and trap
//     flags.
const oldest = "10.0"

// fetchLimit is the time limit of the download, which is about 10 MB. After a failure, Choose tries
// again only after retryAfter, so that a host without a network does not wait at every start.
const (
	fetchLimit = 3 * time.Minute
	retryAfter = 24 * time.Hour
)

// failureFile is the file with the error of the last failed attempt.
const failureFile = "failure"

// Choose returns the path or name of the QEMU to run. A fetched QEMU is stored in dir. If Choose
// cannot get a QEMU that is new enough (see oldest), it returns the host's QEMU, and calls progress
// with a message about this.
func Choose(ctx context.Context, dir string, progress func(string)) string {
	have, err := version(ctx, Program)
	if err != nil || !older(have) {
		return Program // if it is missing, starting it returns an error
	}
	if fetched, err := filepath.Glob(filepath.Join(dir, "*", Program)); err == nil && len(fetched) > 0 {
		return slices.MaxFunc(fetched, debpkg.CompareVersions)
	}
	err = lastFailure(dir)
	if err == nil {
		progress("downloading a newer QEMU than " + have + " (about 10 MB, once)")
		var path string
		if path, err = fetch(ctx, dir); err == nil {
			return path
		}
		if ctx.Err() == nil {
			// If the error cannot be saved, the next start tries the download again.
			_ = os.WriteFile(filepath.Join(dir, failureFile), []byte(err.Error()), 0o644)
		}
	}
	progress(fmt.Sprintf("going on with QEMU %s, which loses a VM now and then: %v", have, err))
	return Program
}

// lastFailure returns the error of the last attempt. If that attempt was more than retryAfter ago,
// it returns nil.
func lastFailure(dir string) error {
	path := filepath.Join(dir, failureFile)
	info, err := os.Stat(path)
	if err != nil || time.Since(info.ModTime()) > retryAfter {
		return nil
	}
	reason, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return errors.New(string(reason))
}

func older(version string) bool { return debpkg.CompareVersions(version, oldest) < 0 }

var versionLine = regexp.MustCompile(`version (\d+\.\d+(\.\d+)*)`)

func version(ctx context.Context, program string) (string, error) {
	out, err := debpkg.Run(ctx, "", program, "--version")
	if err != nil {
		return "", err
	}
	m := versionLine.FindStringSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%s --version says no version", program)
	}
	return m[1], nil
}

// fetch downloads the newest QEMU of the backports. The program appears below dir completely or not
// at all.
func fetch(ctx context.Context, dir string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	codename, err := release()
	if err != nil {
		return "", err
	}
	staging, err := debpkg.Fetch(ctx, dir, codename+"-backports", Package)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(staging)
	program := filepath.Join(staging, "usr/bin", Program)
	if err := mend(program); err != nil {
		return "", err
	}
	v, err := version(ctx, program) // fails if the host lacks a library that the program needs
	if err != nil {
		return "", err
	}
	if older(v) {
		return "", fmt.Errorf("%s-backports have %s, which is too old too", codename, v)
	}
	final := filepath.Join(dir, v, Program)
	if err := os.Mkdir(filepath.Dir(final), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("publish QEMU: %w", err)
	}
	if err := os.Rename(program, final); err != nil {
		return "", fmt.Errorf("publish QEMU: %w", err)
	}
	return final, nil
}

var releaseField = regexp.MustCompile(`(?m)^(ID|VERSION_CODENAME)="?([^"\n]*)"?$`)

// release returns the codename of the host's Debian release.
func release() (string, error) {
	text, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", fmt.Errorf("find the Debian release: %w", err)
	}
	fields := map[string]string{}
	for _, m := range releaseField.FindAllStringSubmatch(string(text), -1) {
		fields[m[1]] = m[2]
	}
	if fields["ID"] != "debian" || fields["VERSION_CODENAME"] == "" {
		return "", fmt.Errorf("no backports are known for %q: install %s %s or later", fields["ID"], Package, oldest)
	}
	return fields["VERSION_CODENAME"], nil
}
