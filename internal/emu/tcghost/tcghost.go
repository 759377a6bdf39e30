// Package tcghost is the host side of `forkd machine`. It runs a Linux host that is emulated by
// QEMU with nested SVM, in which kvm-amd works. The emulated host is used if /dev/kvm is missing or
// unusable, and for tests that need KVM.
//
//	client (emulated host …) ──start──▶ supervisor (own session) ──owns──▶ qemu ── forkd-machined (PID 1 inside)
//	        └──────────────── HTTP over a forwarded loopback port ────────────────────────┘
//
// The supervisor runs as long as the emulated host should run. If the emulated host exits or does
// not answer, the supervisor restarts it and records the restart in the state file. When the
// supervisor exits, the kernel kills QEMU.
//
// The package does not decide when an emulated host is needed. It does not know what the daemon in
// the emulated host does.
package tcghost

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// DefaultName is the name of the emulated host that commands use if they are given no name.
const DefaultName = "default"

// Errors that callers branch on.
var (
	// ErrNotRunning means that no emulated host has the given name, or that the emulated host does
	// not answer.
	ErrNotRunning = errors.New("the emulated host is not running: start it with `forkd machine start`")
	// ErrLost means that the emulated host exited, hung or was stopped during a command.
	ErrLost = errors.New("the emulated host went away while the command ran")
)

// Options are the settings of an emulated host. They take effect when it starts.
type Options struct {
	// Memory of the emulated host. The real host allocates a page of it when the page is first
	// used.
	MemoryMiB int           `json:"memory_mib"`
	DiskGiB   int           `json:"disk_gib"`   // size of the state disk, a sparse file; fixed after its creation
	HangLimit time.Duration `json:"hang_limit"` // time without a response after which an emulated host counts as hung
	QEMU      string        `json:"qemu"`       // path or name of the emulator; empty: see package debqemu
}

// DefaultOptions returns the options of `forkd machine start` without flags.
func DefaultOptions() Options {
	return Options{MemoryMiB: 6144, DiskGiB: 32, HangLimit: 60 * time.Second}
}

func (o Options) validate() error {
	switch {
	case o.MemoryMiB < 512:
		return fmt.Errorf("memory of the emulated host is %d MiB: give it 512 or more", o.MemoryMiB)
	case o.DiskGiB < 1:
		return fmt.Errorf("state disk is %d GiB: give it 1 or more", o.DiskGiB)
	case o.HangLimit < 5*time.Second:
		return fmt.Errorf("hang limit is %v: a busy machine needs 5s or more to answer", o.HangLimit)
	}
	return nil
}

// Machine identifies an emulated host and its files. It holds no resources.
type Machine struct {
	Name  string
	cache string // the cache directory
	dir   string // directory with the files of this emulated host
}

var validName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

// Open returns the emulated host with the given name. Its files are below cacheDir, an absolute
// path. The emulated host need not exist.
func Open(cacheDir, name string) (Machine, error) {
	if !validName.MatchString(name) {
		return Machine{}, fmt.Errorf("name %q of an emulated host: use up to 32 of a-z, 0-9 and '-'", name)
	}
	if !filepath.IsAbs(cacheDir) {
		return Machine{}, fmt.Errorf("cache directory %q is not an absolute path", cacheDir)
	}
	return Machine{Name: name, cache: cacheDir, dir: filepath.Join(cacheDir, "machine", name)}, nil
}

// CacheDir returns the cache directory. The emulated host sees parts of it, under the same paths.
func (m Machine) CacheDir() string { return m.cache }

// DaemonDir returns the directory with the files from which the daemon in the emulated host is
// started. The emulated host sees it under the same path.
func (m Machine) DaemonDir() string { return m.path(dirDaemon) }

// path returns the path of a file of the emulated host.
func (m Machine) path(name string) string { return filepath.Join(m.dir, name) }

// Names of the files in an emulated host's directory.
const (
	fileState      = "state.json"
	fileToken      = "token"           // mode 0600
	fileOptions    = "options.json"    // options for the supervisor
	fileClientLock = "client.lock"     // held during start and stop
	fileSuperLock  = "supervisor.lock" // held by the supervisor while it runs
	fileSuperLog   = "supervisor.log"
	fileConsole    = "console.log" // serial console of the current boot
	filePrevious   = "console.previous.log"
	fileInitrd     = "initrd.img"
	fileDisk       = "state.img"
	fileQEMULog    = "qemu.log"
	dirRun         = "run"    // programs copied for exec
	dirDaemon      = "daemon" // see DaemonDir
	dirOut         = "out"    // results of programs; the only share that the emulated host can write to
)

// makeDir creates the emulated host's directory. Only the owner may enter it, because it contains
// the token and the console's output.
func (m Machine) makeDir() error {
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return fmt.Errorf("make directory of emulated host %s: %w", m.Name, err)
	}
	return nil
}
