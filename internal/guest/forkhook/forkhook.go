// Package forkhook runs an image's hooks in every fork. The agent confirms the fork only after the
// hooks have ended. The hooks are the programs in /etc/forkd/fork.d and, if the guest has SSH host
// keys, the replacement of these keys. A guest without hooks makes only two system calls here, even
// if it has an SSH client.
//
// The package restarts no service. A program that has read the old keys, or must know of the fork,
// must be restarted or notified by a hook.
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

// limit bounds the total time of the hooks of one fork, because the client that requested the fork
// waits for them.
const limit = 15 * time.Second

// maxOutput is how many bytes an error quotes from the end of a failed hook's output.
const maxOutput = 2 << 10

// Hooks are the hooks of one guest. The paths are fields so that tests can change them.
type Hooks struct {
	reaper  *reap.Reaper
	environ func() []string // returns root's environment
	dir     string          // directory of programs, which run in the order of their names
	sshDir  string
	limit   time.Duration
	keyless keyless
}

// New returns the hooks of this system.
func New(reaper *reap.Reaper, environ func() []string) *Hooks {
	return &Hooks{reaper: reaper, environ: environ, dir: "/etc/forkd/fork.d", sshDir: "/etc/ssh", limit: limit}
}

// Run replaces the SSH host keys and then runs the programs as root. It stops at the first failure,
// or when the time limit has passed. During Run, the machine already has its new random numbers,
// clock and names, but the interpreters do not have them.
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

// Any reports whether Run might have something to do.
func (h *Hooks) Any() bool { return rawcall.Exists(h.dir) || h.keyless.changed(h.sshDir) }

// programs returns the executable files of the hooks' directory, sorted by name.
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

// run runs a program until it exits. At the deadline it kills the program and the processes that
// the program started. The output is written to memory. If it were written to a pipe, the method
// run would have to wait for all processes that keep the pipe open.
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
		_ = child.SignalGroup(syscall.SIGKILL) // fails only if the process has ended
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

// tail returns the end of a program's output, for use at the end of an error message.
func tail(output *os.File) string {
	size, err := output.Seek(0, io.SeekEnd)
	if err != nil || size == 0 {
		return ", without output"
	}
	buf := make([]byte, min(size, maxOutput))
	n, _ := output.ReadAt(buf, size-int64(len(buf)))
	return ": " + strings.TrimSpace(string(buf[:n]))
}
