// Package vmtest gives tests that boot real VMs what they need: usable KVM, a kernel, root file
// systems, the VMM binary.
//
// Where KVM is not usable, and with FORKD_TEST_HOST=1, such tests skip and say why; in the emulated
// host (FORKD_TEST_MACHINE=1) and where FORKD_TEST_KVM=1 says that KVM must work they fail instead.
// The files are made on the host by the command in prepare, because the emulated host has no
// package manager. Nothing here is compiled into a product binary.
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

// Kernel is a guest kernel with its initramfs. All paths are absolute.
type Kernel struct {
	Name    string `json:"name"`
	VMLinux string `json:"vmlinux"`
	BzImage string `json:"bzimage"`
	Initrd  string `json:"initrd"`
}

// Build is an earlier build of forkd.
type Build struct {
	Protocol int    `json:"protocol"` // control protocol of its VMMs
	Forkd    string `json:"forkd"`
	Kernel   Kernel `json:"kernel"` // the minimal one, with its agent
}

// Assets are the files that prepare made.
type Assets struct {
	VMM     string            `json:"vmm"` // forkd-vmm
	Forkd   string            `json:"forkd"`
	Torture string            `json:"torture"` // test/guest/torture
	Cloud   Kernel            `json:"cloud"`   // the distribution's
	Minimal Kernel            `json:"minimal"` // guest/kernel
	Images  map[string]string `json:"images"`  // recipe → directory of the image
	Roots   string            `json:"roots"`   // authorities that the host trusts, PEM
	Disk    string            `json:"disk"`    // an ext4 file system with nothing on it
	// the first build that speaks the VMMs' protocol, and the last that does not
	Earlier []Build `json:"earlier"`
	NoBuild string  `json:"no_build"` // why there are none
}

// AssetsFile is where prepare describes them, in the cache directory.
const AssetsFile = "vmtest/assets.json"

// LeftOut is why VM tests skip with FORKD_TEST_HOST=1; command testrun counts them by it.
const LeftOut = "a VM test: 'scripts/test vm' runs it"

// Lacking begins the reason of a test that skips for what a checkout need not have, such as a long
// history: command testrun prints it, and fails for any other skip of a VM test.
const Lacking = "this checkout lacks:"

// NeedKVM skips or fails the test where KVM is not usable. Tests that need only this, and no files,
// call it; Load does. Command testrun finds VM tests by their calls of these two functions.
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
	dir, err := cachedir.Dir()
	if err != nil {
		t.Fatal(err)
	}
	p, err := os.ReadFile(filepath.Join(dir, AssetsFile))
	if err != nil {
		missing(t, "run scripts/test, which makes the files that VM tests need: %v", err)
	}
	a := &Assets{}
	if err := json.Unmarshal(p, a); err != nil {
		t.Fatalf("parse %s: %v", AssetsFile, err)
	}
	return a
}

// missing skips the test, or fails it where VM tests must run.
func missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("FORKD_TEST_MACHINE") != "" || os.Getenv("FORKD_TEST_KVM") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// Emulated reports whether the tests run inside forkd's own emulated host.
func Emulated() bool { return os.Getenv("FORKD_TEST_MACHINE") != "" }

// BootAgain reports whether a boot that ended with err is worth another try: a QEMU that is not
// mended (package debqemu) now and then delivers an interrupt to a nested guest that has them off,
// and a kernel that boots does not survive that. It is for fresh boots only: a copy of a guest that
// panics is a finding. The product never tries again.
func BootAgain(err error) bool {
	return Emulated() && err != nil && strings.Contains(err.Error(), "Kernel panic")
}

// Template is the CPU template for this host's guests: an emulated host does not keep XCR0 of
// nested guests.
func Template() string {
	if Emulated() {
		return vm.TemplateV2
	}
	return vm.TemplateHost
}

// Cmdline is the kernel command line for this host's guests.
func Cmdline(extra ...string) string {
	if Emulated() {
		extra = append(extra, tcghost.GuestCmdline()...)
	}
	return vm.Cmdline(extra...)
}

// ShortDir returns a directory whose path leaves room for unix socket names.
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

// ForReading opens the file of f once more, for reading only, also where it has no name.
func ForReading(f *os.File) (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// LastLines returns the end of a console log for a failure message.
func LastLines(console []byte, n int) string {
	lines := strings.Split(strings.TrimRight(string(console), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
