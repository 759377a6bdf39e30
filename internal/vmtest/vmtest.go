// Package vmtest provides the prerequisites of tests with real VMs: a check for usable KVM, a
// kernel, root file systems and the VMM program.
//
// If KVM is not usable, or if FORKD_TEST_HOST=1, such tests are skipped with a reason. In the
// emulated host (FORKD_TEST_MACHINE=1), or if FORKD_TEST_KVM=1, such tests fail instead. The
// command prepare creates the files on the host, because the emulated host has no package manager.
// No program of the product contains this package.
package vmtest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/emu/tcghost"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/kvm"
)

// Kernel is a kernel for guests, with its initramfs. All paths are absolute.
type Kernel struct {
	Name    string `json:"name"`
	VMLinux string `json:"vmlinux"`
	BzImage string `json:"bzimage"`
	Initrd  string `json:"initrd"`
}

// Build is an earlier build of forkd.
type Build struct {
	Protocol int    `json:"protocol"` // version of the control protocol of its VMMs
	Forkd    string `json:"forkd"`
	Kernel   Kernel `json:"kernel"` // the minimal kernel, with the agent of this build
}

// Assets lists the files that prepare created.
type Assets struct {
	VMM     string            `json:"vmm"` // path of forkd-vmm
	Forkd   string            `json:"forkd"`
	Torture string            `json:"torture"` // path of the program test/guest/torture
	Cloud   Kernel            `json:"cloud"`   // the distribution's kernel
	Minimal Kernel            `json:"minimal"` // the kernel of guest/kernel
	Images  map[string]string `json:"images"`  // by recipe: directory of the image
	Roots   string            `json:"roots"`   // root certificates that the host trusts, in PEM
	Disk    string            `json:"disk"`    // path of an empty ext4 file system
	Busybox string            `json:"busybox"` // path of busybox, a static shell
	// The first build whose VMMs have the present protocol, and the build before it.
	Earlier []Build `json:"earlier"`
	NoBuild string  `json:"no_build"` // why Earlier is empty
}

// AssetsFile is the file, in the cache directory, in which prepare describes the assets. The
// environment variable FORKD_TEST_ASSETS names another file, for tests with other programs.
const AssetsFile = "vmtest/assets.json"

// LeftOut is the skip reason of VM tests if FORKD_TEST_HOST=1. Command testrun recognizes it.
const LeftOut = "a VM test: 'scripts/test vm' runs it"

// Lacking is the prefix of a skip reason that says that a checkout lacks something optional, such
// as a long history. Command testrun prints such reasons. A VM test that skips for any other reason
// counts as failed.
const Lacking = "this checkout lacks:"

// NeedKVM skips or fails the test if KVM is not usable. Tests that need KVM but no files, and the
// function Load, call NeedKVM. For command testrun, every test that calls NeedKVM or Load is a VM
// test.
func NeedKVM(t testing.TB) {
	t.Helper()
	if os.Getenv("FORKD_TEST_HOST") != "" {
		t.Skip(LeftOut)
	}
	if err := kvm.Probe(); err != nil {
		missing(t, "KVM is not usable: %v", err)
	}
}

// Load returns the assets, or skips or fails the test.
func Load(t testing.TB) *Assets {
	t.Helper()
	NeedKVM(t)
	file := os.Getenv("FORKD_TEST_ASSETS")
	if file == "" {
		dir, err := cachedir.Dir()
		if err != nil {
			t.Fatal(err)
		}
		file = filepath.Join(dir, AssetsFile)
	}
	p, err := os.ReadFile(file)
	if err != nil {
		missing(t, "run scripts/test, which makes the files that VM tests need: %v", err)
	}
	a := &Assets{}
	if err := json.Unmarshal(p, a); err != nil {
		t.Fatalf("parse %s: %v", file, err)
	}
	return a
}

// missing skips the test, or fails it if VM tests are required.
func missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("FORKD_TEST_MACHINE") != "" || os.Getenv("FORKD_TEST_KVM") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// Emulated reports whether the test runs inside forkd's own emulated host.
func Emulated() bool { return os.Getenv("FORKD_TEST_MACHINE") != "" }

// BootAgain reports whether a boot that failed with err should be repeated. QEMU, if it is not
// patched (package debqemu), occasionally delivers an interrupt to a nested guest that has
// interrupts disabled. A booting kernel panics then. Use BootAgain only for fresh boots, because a
// panic in a copy of a guest may be caused by a defect of forkd. The product never retries.
func BootAgain(err error) bool {
	return Emulated() && err != nil && strings.Contains(err.Error(), "Kernel panic")
}

// Template returns the CPU template for guests on this host. An emulated host needs a template
// without XSAVE, because it does not preserve XCR0 of nested guests.
func Template() string {
	if Emulated() {
		return vm.TemplateV2
	}
	return vm.TemplateHost
}

// Cmdline returns the kernel command line for guests on this host.
func Cmdline(extra ...string) string {
	if Emulated() {
		extra = append(extra, tcghost.GuestCmdline()...)
	}
	return vm.Cmdline(extra...)
}

// ShortDir returns a new directory with a short path, which leaves room for the names of unix
// sockets.
func ShortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "fkt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// ForReading opens the file of f again, for reading only. This works even if the file has no name.
func ForReading(f *os.File) (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// LastLines returns the last n lines of a console log, for the message of a failure.
func LastLines(console []byte, n int) string {
	lines := strings.Split(strings.TrimRight(string(console), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
