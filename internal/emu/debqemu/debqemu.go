// Package debqemu finds the QEMU that `forkd machine` runs: the host's, or if that is too old, one
// from the backports of the host's Debian release, unpacked into the cache.
//
// It installs nothing and needs no root. The fetched QEMU uses data files and libraries of the
// host's package. Package debqemu does not know what QEMU runs.
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

// Package is the Debian package that contains it.
const Package = "qemu-system-x86"

// oldest is the first series known to be without these two faults of 7.2 (target/i386/tcg of its
// source). Because of them VMs in an emulated host occasionally die or hang. For a third fault,
// which both series have, see mend.go.
//
//   - VMRUN does not load the interrupt shadow (AMD64 manual volume 2, section 15.21.5). An
//     interrupt can come between STI and HLT, and then HLT waits although it should wake up.
//   - CMPXCHG16B leaves operands of earlier instructions in RFLAGS, including the interrupt and trap
//     flags.
const oldest = "10.0"

// fetchLimit bounds a download of about 10 MB. After a failure Choose waits for retryAfter before
// it tries again, so that a host without a network does not lose that time at every start.
const (
	fetchLimit = 3 * time.Minute
	retryAfter = 24 * time.Hour
)

// failureFile contains the reason for the last failure.
const failureFile = "failure"

// Choose returns the QEMU to run. It keeps a fetched one in dir. If it cannot get a good one, it
// returns the host's, and reports that to progress.
func Choose(ctx context.Context, dir string, progress func(string)) string {
	have, err := version(ctx, Program)
	if err != nil || !older(have) {
		return Program // the caller reports a missing program when it starts it
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

// lastFailure returns the error of the last attempt if it is too early for another one.
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

// fetch downloads the newest QEMU of the backports. It appears below dir complete or not at all.
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
