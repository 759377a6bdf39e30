package tcghost

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/atomicfile"
)

// Phase is the phase of an emulated host.
//
//	starting ──▶ ready ──▶ stopping ──▶ stopped
//	    ▲          │ died or hung
//	    └──────────┘         starting ──▶ failed, after several starts in a row without an answer
type Phase string

// Phases. If an emulated host has no supervisor, its phase is stopped or failed, whatever the state
// file says.
const (
	Starting Phase = "starting"
	Ready    Phase = "ready"
	Stopping Phase = "stopping"
	Stopped  Phase = "stopped"
	Failed   Phase = "failed"
)

// State is the content of the emulated host's state file. Only the supervisor writes it.
type State struct {
	Name        string    `json:"name"`
	Phase       Phase     `json:"phase"`
	BootID      string    `json:"boot_id,omitempty"` // differs between starts of QEMU
	Supervisor  Process   `json:"supervisor"`
	QEMU        Process   `json:"qemu"`
	InitAddr    string    `json:"init_addr"`   // address on the real host that leads to forkd-machined's API
	DaemonAddr  string    `json:"daemon_addr"` // address on the real host that leads to the daemon's port
	StartedAt   time.Time `json:"started_at"`  // start of this boot
	ReadyMS     int64     `json:"ready_ms"`    // from the start of QEMU to the first answer
	Restarts    int       `json:"restarts"`    // number of restarts since `machine start`
	LastFailure string    `json:"last_failure,omitempty"`
	Options     Options   `json:"options"`
}

// State reads the emulated host's state. If the emulated host was never started, or has no
// supervisor any more, the phase is Stopped or Failed.
func (m Machine) State() (State, error) {
	s := State{Name: m.Name, Phase: Stopped}
	b, err := os.ReadFile(m.path(fileState))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read state of emulated host %s: %w", m.Name, err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("read state of emulated host %s: %s: %w", m.Name, m.path(fileState), err)
	}
	supervised, err := m.supervised()
	if err != nil {
		return s, err
	}
	if !supervised && s.Phase != Stopped && s.Phase != Failed {
		s.Phase = Failed
		if s.LastFailure == "" {
			s.LastFailure = "the supervisor was killed"
		}
	}
	return s, nil
}

// writeState replaces the state file.
func (m Machine) writeState(s State) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return m.replace(fileState, append(b, '\n'))
}

// replace writes a file of the emulated host atomically.
func (m Machine) replace(name string, data []byte) error {
	return atomicfile.Write(m.path(name), data, 0o600)
}

// supervised reports whether a supervisor is running. It looks at the supervisor's lock and not at
// a process id, which may have been reused.
func (m Machine) supervised() (bool, error) {
	f, err := os.Open(m.path(fileSuperLock))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for supervisor: %w", err)
	}
	defer f.Close()
	// F_OFD_GETLK only examines the lock. Taking the lock could make a starting supervisor fail.
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("look for supervisor: %w", err)
	}
	return lock.Type != unix.F_UNLCK, nil
}

var errLocked = errors.New("locked by another process")

// tryLock locks a file until the returned file is closed or the process exits. The directory of
// path must exist. If another process, or another open file of this process, holds the lock, the
// error is errLocked.
func tryLock(path string) (*os.File, error) { return lockFile(path, unix.F_OFD_SETLK) }

// waitLock is like tryLock, but waits for the lock.
func waitLock(path string) (*os.File, error) { return lockFile(path, unix.F_OFD_SETLKW) }

func lockFile(path string, cmd int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	for {
		err = unix.FcntlFlock(f.Fd(), cmd, &unix.Flock_t{Type: unix.F_WRLCK})
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, errLocked
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// token returns the bearer token of the emulated host. It creates the token if it does not exist.
func (m Machine) token() (string, error) {
	b, err := os.ReadFile(m.path(fileToken))
	if err == nil && len(b) > 0 {
		return strings.TrimSpace(string(b)), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read token: %w", err)
	}
	token := randomHex(32)
	return token, m.replace(fileToken, []byte(token+"\n"))
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails: crypto/rand.Read crashes the program instead of returning an error
	return hex.EncodeToString(b)
}

// freeAddr returns a loopback address at which no process listens. If the given address is free,
// freeAddr returns it. If another process takes the address before QEMU does, QEMU fails to start,
// and the supervisor tries again.
func freeAddr(prefer string) (string, error) {
	for _, addr := range []string{prefer, "127.0.0.1:0"} {
		if addr == "" {
			continue
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		defer l.Close()
		return l.Addr().String(), nil
	}
	return "", errors.New("find a free loopback port: none can be opened")
}

// rotate renames a file of the emulated host from name to previous. It is no error if there is no
// such file.
func (m Machine) rotate(name, previous string) error {
	err := os.Rename(m.path(name), m.path(previous))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep %s: %w", filepath.Base(name), err)
	}
	return nil
}
