// Package tcghost is the host side of `forkd machine`: a Linux host emulated by QEMU with nested
// SVM, in which kvm-amd is real. It is used where /dev/kvm is missing or unfit, and to run tests
// that need KVM.
//
//	client (emulated host …) ──start──▶ supervisor (own session) ──owns──▶ qemu ── forkd-machined (PID 1 inside)
//	        └──────────────── HTTP over a forwarded loopback port ────────────────────────┘
//
// The supervisor lives as long as the emulated host should; it restarts an emulated host that died
// or does not answer and says so in the state file. QEMU dies with its supervisor.
//
// The package does not decide when an emulated host is needed, and it does not know what the daemon
// in it does.
package tcghost

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// DefaultName is the emulated host that commands mean if they name none.
const DefaultName = "default"

// Errors that callers branch on.
var (
	// ErrNotRunning means that there is no emulated host of that name that answers.
	ErrNotRunning = errors.New("the emulated host is not running: start it with `forkd machine start`")
	// ErrLost means that the emulated host died, hung or was stopped while a command ran in it.
	ErrLost = errors.New("the emulated host went away while the command ran")
)

// Options is the shape of an emulated host. It takes effect when the emulated host starts.
type Options struct {
	MemoryMiB int           `json:"memory_mib"` // memory of the emulated host; the host gives pages as they are used
	DiskGiB   int           `json:"disk_gib"`   // size of the state disk, a sparse file; fixed when it is first made
	HangLimit time.Duration `json:"hang_limit"` // silence after which an emulated host counts as hung
	QEMU      string        `json:"qemu"`       // path or name of the emulator; empty: see package debqemu
}

// DefaultOptions returns what `forkd machine start` uses without flags.
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

// Machine names one machine and the files that belong to it. It holds no resources.
type Machine struct {
	Name  string
	cache string // the cache directory
	dir   string // this machine's files
}

var validName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

// Open returns the emulated host called name, with its files below cacheDir (an absolute path). The
// emulated host need not exist.
func Open(cacheDir, name string) (Machine, error) {
	if !validName.MatchString(name) {
		return Machine{}, fmt.Errorf("name %q of an emulated host: use up to 32 of a-z, 0-9 and '-'", name)
	}
	if !filepath.IsAbs(cacheDir) {
		return Machine{}, fmt.Errorf("cache directory %q is not an absolute path", cacheDir)
	}
	return Machine{Name: name, cache: cacheDir, dir: filepath.Join(cacheDir, "machine", name)}, nil
}

// CacheDir is the cache directory. The emulated host sees what it needs of it, under the same path.
func (m Machine) CacheDir() string { return m.cache }

// DaemonDir is for what the daemon in the emulated host is started from. The emulated host sees it
// under the same path.
func (m Machine) DaemonDir() string { return m.path(dirDaemon) }

// path returns the path of one of the emulated host's files.
func (m Machine) path(name string) string { return filepath.Join(m.dir, name) }

// Names of the files in an emulated host's directory.
const (
	fileState      = "state.json"
	fileToken      = "token"           // mode 0600
	fileOptions    = "options.json"    // what the supervisor was started with
	fileClientLock = "client.lock"     // held by start and stop
	fileSuperLock  = "supervisor.lock" // held by the supervisor for its whole life
	fileSuperLog   = "supervisor.log"
	fileConsole    = "console.log" // serial console of the current boot
	filePrevious   = "console.previous.log"
	fileInitrd     = "initrd.img"
	fileDisk       = "state.img"
	fileQEMULog    = "qemu.log"
	dirRun         = "run"    // programs copied for exec
	dirDaemon      = "daemon" // see DaemonDir
	dirOut         = "out"    // results of programs; the emulated host writes here and nowhere else
)

// makeDir creates the emulated host's directory. It holds the token and a console, so it is the
// owner's alone.
func (m Machine) makeDir() error {
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return fmt.Errorf("make directory of emulated host %s: %w", m.Name, err)
	}
	return nil
}
