// Package forkhook runs an image's hooks in every fork before the fork confirms. The hooks are the
// programs of /etc/forkd/fork.d, and the replacement of SSH host keys, if the guest has any. In a
// guest without hooks the package makes two system calls, even if the guest has an SSH client.
//
// It restarts no service: hooks handle programs that read the old keys, or that must know of the
// fork.
package forkhook

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/reap"
	"github.com/forkd/forkd/internal/rawcall"
)

// limit bounds the total time of one fork's hooks, because the fork's caller waits for the
// confirmation.
const limit = 15 * time.Second

// maxOutput bounds the end of a failed hook's output that the error quotes, in bytes.
const maxOutput = 2 << 10

// Hooks are the hooks of one guest. Its paths are fields so that tests can use other ones.
type Hooks struct {
	reaper  *reap.Reaper
	environ func() []string // of root
	dir     string          // programs, run in the order of their names
	sshDir  string
	limit   time.Duration
	keyless keyless
}

// New returns the hooks of this system.
func New(reaper *reap.Reaper, environ func() []string) *Hooks {
	return &Hooks{reaper: reaper, environ: environ, dir: "/etc/forkd/fork.d", sshDir: "/etc/ssh", limit: limit}
}

// Run replaces the SSH host keys and runs the programs, as root, until one fails or the time is up.
// By then the machine has its new random numbers, clock and names, but the interpreters do not.
func (h *Hooks) Run() error {
	if !h.Any() {
		return nil
	}
	deadline := time.Now().Add(h.limit)
	if err := h.replaceSSHKeys(deadline); err != nil {
		return fmt.Errorf("replace the ssh host keys: %w", err)
	}
	programs, err := h.programs()
	if err != nil {
		return fmt.Errorf("fork hooks: %w", err)
	}
	for _, path := range programs {
		if err := h.run(deadline, path); err != nil {
			return fmt.Errorf("fork hook %w", err)
		}
	}
	return nil
}

// Any reports whether there may be something to do.
func (h *Hooks) Any() bool { return rawcall.Exists(h.dir) || h.keyless.changed(h.sshDir) }

// programs returns the executable files of dir by name.
func (h *Hooks) programs() ([]string, error) {
	entries, err := os.ReadDir(h.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var paths []string
	for _, e := range entries {
		path := filepath.Join(h.dir, e.Name())
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			paths = append(paths, path)
		}
	}
	return paths, err
}

// run runs a program until it exits; at the deadline it and the processes it started are killed.
// Its output goes to memory, not to a pipe, so that processes that it leaves running delay nothing.
func (h *Hooks) run(deadline time.Time, path string, args ...string) error {
	fd, err := unix.MemfdCreate("fork-hook", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("%s: memfd: %w", path, err)
	}
	output := os.NewFile(uintptr(fd), "fork-hook")
	defer output.Close()
	child, err := h.reaper.Start(&exec.Cmd{
		Path: path, Args: append([]string{path}, args...), Env: h.environ(), Dir: "/", Stdout: output, Stderr: output,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-child.Done():
	case <-timer.C:
		_ = child.SignalGroup(syscall.SIGKILL) // an error means that the process is gone
		child.Status()
		return fmt.Errorf("%s: not done after %v%s", path, h.limit, tail(output))
	}
	switch status := child.Status(); {
	case status.Signaled():
		return fmt.Errorf("%s: signal: %v%s", path, status.Signal(), tail(output))
	case status.ExitStatus() != 0:
		return fmt.Errorf("%s: exit status %d%s", path, status.ExitStatus(), tail(output))
	}
	return nil
}

// tail returns the end of an output as the rest of an error.
func tail(output *os.File) string {
	size, err := output.Seek(0, io.SeekEnd)
	if err != nil || size == 0 {
		return ", without output"
	}
	buf := make([]byte, min(size, maxOutput))
	n, _ := output.ReadAt(buf, size-int64(len(buf)))
	return ": " + strings.TrimSpace(string(buf[:n]))
}
