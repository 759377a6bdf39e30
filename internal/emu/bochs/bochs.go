// Package bochs runs a job in an emulated Intel host. So kvm-intel, and code that depends on it,
// can be tested on any machine. Bochs emulates VMX, but QEMU's TCG emulates only AMD's SVM.
//
// An emulated host exists for one run: it boots, does its job with a disk that was made for this
// run, and powers off. Then the caller reads the results from the disk. During the run, the host
// has no network and no connection to the caller. The host's time is virtual and advances with the
// number of executed instructions. So time limits inside the host do not depend on the load of the
// real host, and durations that are measured inside the host say nothing about real hardware.
//
// The package installs nothing on the real host. It needs root, or a real host that permits user
// namespaces. Users' sandboxes do not run here, but in the host of package tcghost, which is ten
// times faster.
package bochs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/build/debpkg"
)

// suite is the Debian suite with Bochs 3.0, whose emulation of VMX works with kvm-intel. Debian 12
// has Bochs 2.7, which is built without VMX. Later suites have Bochs 3.1, which divides 64-bit
// numbers wrongly, so that kernels panic.
const suite = "trixie"

// packages are fetched with their dependencies. These packages contain the emulator, its firmware,
// its smallest display (Bochs requires a display), and the tools for making a CD that the firmware
// can boot.
var packages = []string{"bochs", "bochsbios", "vgabios", "bochs-term", "genisoimage", "isolinux", "syslinux-common"}

// kept lists the directories of the unpacked packages that are stored in the cache.
var kept = []string{"usr/bin", "usr/lib", "usr/share/bochs", "usr/share/vgabios"}

// layout is the name of the directory in the cache. Increase its number to make every real host
// fetch the packages again.
const layout = suite + "-1"

// fetchLimit is the time limit of the download, which is about 70 MB, including 15 MB of package
// lists.
const fetchLimit = 10 * time.Minute

// Emulator is an unpacked Bochs.
type Emulator struct{ root string }

// Get returns the Bochs in dir, and fetches it if it is missing.
func Get(ctx context.Context, dir string, progress func(string)) (Emulator, error) {
	final := filepath.Join(dir, layout)
	if _, err := os.Stat(final); err == nil {
		return Emulator{final}, nil
	}
	progress("downloading Bochs from Debian " + suite + " (about 70 MB, once)")
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	tree, err := debpkg.FetchWhole(ctx, dir, suite, packages...)
	if err != nil {
		return Emulator{}, err
	}
	defer os.RemoveAll(tree)
	out := filepath.Join(tree, "out")
	for _, name := range kept {
		to := filepath.Join(out, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Rename(filepath.Join(tree, name), to)); err != nil {
			return Emulator{}, fmt.Errorf("unpack Bochs: %w", err)
		}
	}
	if err := (Emulator{out}).check(ctx); err != nil {
		return Emulator{}, err
	}
	// Another process may have fetched Bochs first.
	if err := os.Rename(out, final); err != nil && !errors.Is(err, fs.ErrExist) {
		return Emulator{}, fmt.Errorf("publish Bochs: %w", err)
	}
	return Emulator{final}, nil
}

// libraries is the directory with the libraries and the dynamic loader of the fetched programs. The
// libraries of the real host may be too old.
const libraries = "usr/lib/x86_64-linux-gnu"

// command returns the command line of a fetched program.
func (e Emulator) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	lib := filepath.Join(e.root, libraries)
	loader := append([]string{"--library-path", lib, filepath.Join(e.root, "usr/bin", program)}, args...)
	cmd := exec.CommandContext(ctx, filepath.Join(lib, "ld-linux-x86-64.so.2"), loader...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "BXSHARE="+e.share(),
		"LTDL_LIBRARY_PATH="+filepath.Join(lib, "bochs/plugins"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

func (e Emulator) share() string { return filepath.Join(e.root, "usr/share/bochs") }

// check runs each fetched program once, so that programs that cannot start are not stored in the
// cache.
func (e Emulator) check(ctx context.Context) error {
	for program, arg := range map[string]string{"bochs-bin": "--help", "genisoimage": "--version"} {
		if out, err := e.command(ctx, program, arg).CombinedOutput(); err != nil {
			return fmt.Errorf("start %s of Debian %s: %w: %s", program, suite, err, out)
		}
	}
	return nil
}
