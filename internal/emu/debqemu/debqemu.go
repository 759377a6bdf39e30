// Package debqemu finds the QEMU that `forkd machine` runs: the host's, or where that is too old
// one from the backports of the host's Debian release, unpacked into the cache.
//
// It installs nothing and needs no root; data files and libraries are those of the host's package.
// It does not know what QEMU is started for.
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

// Program is what the host's QEMU is called.
const Program = "qemu-system-x86_64"

// Package is the Debian package that has it.
const Package = "qemu-system-x86"

// oldest is the first series known to be without these faults of 7.2 (target/i386/tcg of its
// source), for which VMs in an emulated host die or hang now and then; another that both have is in
// mend.go:
//   - VMRUN does not load the interrupt shadow (AMD64 manual volume 2, section 15.21.5): an
//     interrupt can come between STI and HLT, and whom it wakes sleeps on;
//   - CMPXCHG16B leaves operands of earlier instructions in RFLAGS, the interrupt and trap flags
//     among them.
const oldest = "10.0"

// fetchLimit bounds a download of about 10 MB. After a failure the next is tried when retryAfter
// has passed: a host without a network shall not wait for it at every start.
const (
	fetchLimit = 3 * time.Minute
	retryAfter = 24 * time.Hour
)

// failureFile has the reason for the last failure.
const failureFile = "failure"

// Choose returns the program to run, which dir keeps if it has to be fetched. Where no good one can
// be had it is the host's all the same, and progress is told.
func Choose(ctx context.Context, dir string, progress func(string)) string {
	have, err := version(ctx, Program)
	if err != nil || !older(have) {
		return Program // one that is missing is reported by whoever starts it
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
			_ = os.WriteFile(filepath.Join(dir, failureFile), []byte(err.Error()), 0o644) // else the next start tries again
		}
	}
	progress(fmt.Sprintf("going on with QEMU %s, which loses a VM now and then: %v", have, err))
	return Program
}

// lastFailure returns why the last try failed if it is too early for another.
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

// fetch gets the newest QEMU of the backports. It appears below dir whole or not at all.
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
	v, err := version(ctx, program) // fails if the host lacks a library
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
