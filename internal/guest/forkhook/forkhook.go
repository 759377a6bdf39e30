// Package forkhook does what an image wants done in every fork before the fork confirms: it runs
// the programs of /etc/forkd/fork.d, and gives a guest that has SSH host keys one of its own. A
// guest with neither pays for two system calls, one that has an SSH client and no host keys too.
//
// It restarts no service: a program that read the old keys, or that has to know of the fork, is a
// hook's business.
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

// limit bounds the hooks of one fork together. A fork that is not confirmed holds up its caller.
const limit = 15 * time.Second

// maxOutput is how much of a failed hook's output the error shows, in bytes: its end says why.
const maxOutput = 2 << 10

// Hooks are those of one guest. Its paths are fields so that tests have their own.
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

// Run replaces the SSH host keys and runs the programs, as root, until one fails or time is up. The
// machine has its new random numbers, clock and names by then; interpreters have not.
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

// run runs a program to its end; at the deadline it and the processes it started are killed. Its
// output is kept in memory, not in a pipe, so that what it leaves running holds nobody up.
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
		_ = child.SignalGroup(syscall.SIGKILL) // gone already is as good
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
