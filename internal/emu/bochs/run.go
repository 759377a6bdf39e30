package bochs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/emu/debkernel"
)

// limits distinguish a hanging host from a host that is slow because the real host is busy. They
// count the CPU time that Bochs has used since the last line on its console. A healthy host prints
// a line every two seconds of its own time, which takes Bochs about four seconds of CPU time.
// Before its init starts, the host prints nothing, so a longer limit applies.
type limits struct {
	boot, silent time.Duration // CPU time
	idle         time.Duration // real time, in case Bochs hangs without using CPU time
}

func defaultLimits() limits {
	return limits{boot: 3 * time.Minute, silent: time.Minute, idle: 10 * time.Minute}
}

const lookPause = 500 * time.Millisecond

// Machine has the emulator, the kernel and the tools from which hosts are made.
type Machine struct {
	Emulator Emulator
	Kernel   debkernel.Kernel
	Busybox  string
}

// Open returns the Machine in a cache directory. It fetches the files that this directory lacks.
func Open(ctx context.Context, cache string, progress func(string)) (m Machine, err error) {
	if m.Emulator, err = Get(ctx, filepath.Join(cache, "bochs"), progress); err != nil {
		return m, err
	}
	kernels := filepath.Join(cache, debkernel.CacheDir)
	m.Kernel, err = debkernel.Find(kernels)
	if errors.Is(err, fs.ErrNotExist) {
		progress("downloading the host's kernel (about 100 MB, once)")
		m.Kernel, err = debkernel.Fetch(ctx, kernels)
	}
	if err == nil {
		m.Busybox, err = debkernel.Busybox(ctx, kernels)
	}
	return m, err
}

// Run is one run of a host, with its disk, in a directory of its own.
type Run struct {
	machine Machine
	host    Host
	dir     string
}

// Prepare makes a run in dir, which the caller removes. It copies the files below tree to the
// host's disk, which is mounted at /disk. The parameter size is the approximate size of these files
// in bytes, and job is the shell script to run.
func (m Machine) Prepare(ctx context.Context, h Host, job, dir, tree string, size int64) (Run, error) {
	r := Run{machine: m, host: h, dir: dir}
	return r, errors.Join(
		m.Emulator.makeCD(ctx, h, m.Kernel, m.Busybox, job, dir),
		makeDisk(ctx, filepath.Join(dir, fileDisk), tree, size),
		os.WriteFile(filepath.Join(dir, fileConfig), []byte(h.configuration(m.Emulator, dir)), 0o644),
	)
}

// Do runs the host until its job has ended and the host has powered off. It kills the host after
// the given time, or if the host hangs. It calls said(line) for each line on the console, except
// for the lines that only show that the host is alive.
func (r Run) Do(ctx context.Context, limit time.Duration, said func(line string)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("ended after %v", limit))
	defer cancel()
	cmd := r.machine.Emulator.command(ctx, "bochs-bin", "-q", "-f", filepath.Join(r.dir, fileConfig))
	cmd.Dir = r.dir
	confine(cmd)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start Bochs: %w (it needs a network namespace of its own)", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	w := watcher{path: filepath.Join(r.dir, fileConsole), said: said, limits: defaultLimits(),
		used: func() time.Duration { return cpuTime(cmd.Process.Pid) }}
	err := w.watch(ctx, ended)
	cancel() // kills Bochs unless it has exited
	if err != nil {
		<-ended
		return fmt.Errorf("emulated Intel host: %w; its console ended with:\n%s", err, w.last(20))
	}
	return nil
}

// confine runs Bochs in a separate network namespace, because the display of Bochs accepts
// connections from any program.
func confine(cmd *exec.Cmd) {
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
	}
}

// Lines that init.sh prints on the host's console.
const (
	lineAlive  = "forkd: alive"
	lineFailed = "forkd: failed: "
	lineDone   = "forkd: done"
	linePanic  = "Kernel panic"
)

// watcher reads the console, which Bochs writes to a file.
type watcher struct {
	path   string
	said   func(string)
	limits limits
	used   func() time.Duration // returns the CPU time that Bochs has used

	read  []byte
	shown int // bytes of the console that have been processed
	done  bool
}

// watch returns nil when the host has done its job and powered off. In all other cases it returns
// an error with the reason.
func (w *watcher) watch(ctx context.Context, ended <-chan error) error {
	limit := w.limits.boot
	spoke, usedThen := time.Now(), w.used()
	for {
		var end bool
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ended: // ignore the status: it is an error even after an orderly power-off
			end = true
		case <-time.After(lookPause):
		}
		before := len(w.read)
		if err := w.look(); err != nil {
			return err
		}
		switch used := w.used() - usedThen; {
		case end && w.done:
			return nil
		case end:
			return errors.New("it ended before its job")
		case len(w.read) > before:
			spoke, usedThen = time.Now(), w.used()
		case used > limit, time.Since(spoke) > w.limits.idle:
			return fmt.Errorf("it hangs: nothing on its console for %.0f s of CPU time and %.0f s of real time",
				used.Seconds(), time.Since(spoke).Seconds())
		}
		if bytes.Contains(w.read, []byte(lineAlive)) {
			limit = w.limits.silent
		}
	}
}

// cpuTime returns the CPU time that a process has used so far; 0 if the process has ended.
func cpuTime(pid int) time.Duration {
	var clock unix.Timespec
	// The id of a process's CPU clock is computed as in clock_getcpuclockid(3) and the kernel's
	// posix-timers.h.
	const schedClock = 2
	if err := unix.ClockGettime(int32(^pid<<3|schedClock), &clock); err != nil {
		return 0
	}
	return time.Duration(clock.Nano())
}

// look reads the new output on the console.
func (w *watcher) look() error {
	p, err := os.ReadFile(w.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	w.read = p
	for {
		line, _, whole := bytes.Cut(w.read[w.shown:], []byte("\n"))
		if !whole {
			return nil
		}
		w.shown += len(line) + 1
		if err := w.line(strings.TrimRight(string(line), "\r")); err != nil {
			return err
		}
	}
}

func (w *watcher) line(line string) error {
	switch why, failed := strings.CutPrefix(line, lineFailed); {
	case failed:
		return errors.New(why)
	case strings.Contains(line, linePanic):
		return errors.New("its kernel panicked")
	case line == lineDone:
		w.done = true
	case !strings.HasPrefix(line, lineAlive):
		w.said(line)
	}
	return nil
}

// last(n) returns the last n lines on the console, without the lines that only show that the host
// is alive.
func (w *watcher) last(n int) string {
	var lines []string
	for line := range strings.Lines(string(w.read)) {
		if !strings.HasPrefix(line, lineAlive) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-n):], "")
}
