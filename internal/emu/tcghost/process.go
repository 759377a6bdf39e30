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

// Process identifies a process for ever. Another process may later have the same id, but not the
// same start time.
type Process struct {
	PID       int    `json:"pid,omitempty"`
	StartTime uint64 `json:"start_time,omitempty"` // field 22 of /proc/<pid>/stat: clock ticks after boot
}

var errGone = errors.New("no such process")

// identify returns the Process that now has the id pid.
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

// startTime reads field 22 of a stat line (proc(5)). Field 2, the name, may contain spaces and
// parentheses, so startTime counts the fields after the last parenthesis.
func startTime(stat []byte) (uint64, error) {
	const field, firstAfterName = 22, 3
	_, rest, ok := bytes.Cut(stat[max(bytes.LastIndexByte(stat, ')'), 0):], []byte(") "))
	fields := bytes.Fields(rest)
	if !ok || len(fields) <= field-firstAfterName {
		return 0, errors.New("stat line is too short")
	}
	return strconv.ParseUint(string(fields[field-firstAfterName]), 10, 64)
}

// kill sends a signal to p, and never to another process. It opens a pidfd first and compares the
// start time afterwards. If the start time is right, the pidfd refers to p, even if p exits and its
// id is reused. If p has exited, kill returns errGone.
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

// alive reports whether p still exists, possibly as a zombie.
func (p Process) alive() bool {
	now, err := identify(p.PID)
	return err == nil && now == p
}

// waitGone waits until p has exited. It returns false after the given time.
func (p Process) waitGone(limit time.Duration) bool {
	const pause = 20 * time.Millisecond
	for deadline := time.Now().Add(limit); p.alive(); time.Sleep(pause) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}
