package tcghost

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Process identifies a process for good: its id may be given to another one later, but not with the
// same start time.
type Process struct {
	PID       int    `json:"pid,omitempty"`
	StartTime uint64 `json:"start_time,omitempty"` // field 22 of /proc/<pid>/stat: clock ticks after boot
}

var errGone = errors.New("no such process")

// identify returns the Process that has id pid now.
func identify(pid int) (Process, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return Process{}, errGone
	}
	if err != nil {
		return Process{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	start, err := startTime(stat)
	if err != nil {
		return Process{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	return Process{PID: pid, StartTime: start}, nil
}

// startTime reads field 22 of a stat line (proc(5)). Field 2, the name, may contain anything, so
// counting starts after its last parenthesis.
func startTime(stat []byte) (uint64, error) {
	const field, firstAfterName = 22, 3
	_, rest, ok := bytes.Cut(stat[max(bytes.LastIndexByte(stat, ')'), 0):], []byte(") "))
	fields := bytes.Fields(rest)
	if !ok || len(fields) <= field-firstAfterName {
		return 0, errors.New("stat line is too short")
	}
	return strconv.ParseUint(string(fields[field-firstAfterName]), 10, 64)
}

// kill sends SIGKILL or another signal to p, and to nobody else: the pidfd is opened first and the
// start time compared after, so that the descriptor cannot mean a process that took the id in
// between. It returns errGone if p has ended.
func (p Process) kill(sig unix.Signal) error {
	if p.PID <= 0 {
		return errGone
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return errGone
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	now, err := identify(p.PID)
	if err != nil {
		return err
	}
	if now != p {
		return errGone
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return errGone
		}
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}

// alive reports whether p still exists, be it as a zombie.
func (p Process) alive() bool {
	now, err := identify(p.PID)
	return err == nil && now == p
}

// waitGone returns when p has ended, or false after limit.
func (p Process) waitGone(limit time.Duration) bool {
	const pause = 20 * time.Millisecond
	for deadline := time.Now().Add(limit); p.alive(); time.Sleep(pause) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}
