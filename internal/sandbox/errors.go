package sandbox

import (
	"bytes"
	"fmt"
	"strings"
	"syscall"

	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// NotFoundError reports an id that no sandbox has.
type NotFoundError struct{ ID string }

func (e *NotFoundError) Error() string { return fmt.Sprintf("sandbox %q: not found", e.ID) }

// StateError reports an operation on a sandbox that is not running.
type StateError struct {
	ID, Op  string
	State   State
	Exit    vmmproto.Exit // if State is Exited
	Console string        // its last lines
}

func (e *StateError) Error() string {
	msg := fmt.Sprintf("%s sandbox %q: it is %s", e.Op, e.ID, e.State)
	if e.State == Exited {
		msg += describeExit(e.Exit, e.Console)
	}
	return msg
}

// InvalidError reports a field of a request that is wrong, and how to put it right.
type InvalidError struct {
	Field  string
	Reason string
}

func (e *InvalidError) Error() string { return e.Field + ": " + e.Reason }

// BakeError reports a parent that did not become a snapshot.
type BakeError struct {
	Tag     string
	Step    string // what was being done
	Err     error
	Console string // last lines of the guest's console, its panic message if it had one
}

func (e *BakeError) Error() string {
	msg := fmt.Sprintf("bake snapshot %q: %s: %v", e.Tag, e.Step, e.Err)
	if e.Console != "" {
		msg += "; the guest's console ends with:\n" + e.Console
	}
	return msg
}

func (e *BakeError) Unwrap() error { return e.Err }

// ForkError reports children that did not start.
type ForkError struct {
	Tag         string
	Asked       int
	Failed      int
	Unconfirmed int   // of Failed: their agent did not confirm its new identity
	First       error // why the first of them failed
}

func (e *ForkError) Error() string {
	return fmt.Sprintf("fork %d of snapshot %q: %d failed, none is kept: %v", e.Asked, e.Tag, e.Failed, e.First)
}

func (e *ForkError) Unwrap() error { return e.First }

// BusyError reports that the host does enough of something already.
type BusyError struct {
	What  string
	Limit int
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("%d %s are under way, the most at once; try again", e.Limit, e.What)
}

// noSpaceError marks an error as syscall.ENOSPC: what a VMM reports has crossed a socket as text.
type noSpaceError struct{ error }

func (e *noSpaceError) Is(target error) bool { return target == syscall.ENOSPC }
func (e *noSpaceError) Unwrap() error        { return e.error }

// fromVMM restores what callers branch on of an error that a VMM has reported.
func fromVMM(err error) error {
	if err != nil && strings.Contains(err.Error(), syscall.ENOSPC.Error()) {
		return &noSpaceError{err}
	}
	return err
}

// stillCopying reports whether a VMM has refused a branch because it copies an earlier one.
func stillCopying(err error) bool {
	return err != nil && strings.Contains(err.Error(), vmmproto.StillCopying)
}

// LineError reports a snapshot that a sandbox cannot be rolled back to.
type LineError struct {
	ID, Tag string
	Line    []string // root first; branches made of the sandbox count too
}

func (e *LineError) Error() string {
	return fmt.Sprintf("roll back sandbox %q to %q: not in its line: it can go back to %s, or a branch made of it",
		e.ID, e.Tag, strings.Join(e.Line, ", "))
}

// RollbackError reports a rollback that failed after its point of no return: the sandbox has been killed.
type RollbackError struct {
	ID, Tag string
	Err     error
	Console string
}

func (e *RollbackError) Error() string {
	msg := fmt.Sprintf("roll back sandbox %q to %q: %v; the sandbox was killed", e.ID, e.Tag, e.Err)
	if e.Console != "" {
		msg += "; its console ends with:\n" + e.Console
	}
	return msg
}

func (e *RollbackError) Unwrap() error { return e.Err }

// exitError says that a VM ended while it was needed.
type exitError struct{ exit vmmproto.Exit }

func (e *exitError) Error() string { return "the VM ended" + describeExit(e.exit, "") }

func describeExit(x vmmproto.Exit, console string) string {
	msg := " (" + x.Reason.String()
	if x.Detail != "" {
		msg += ": " + x.Detail
	}
	msg += ")"
	if console != "" {
		msg += "; its console ends with:\n" + console
	}
	return msg
}

// maxConsoleLine bounds a line quoted in an error message, in bytes: the guest decides what it writes.
const maxConsoleLine = 200

// consoleTail returns what of a console helps most in an error message: the kernel's panic line, if there is one, and
// the last n lines.
func consoleTail(console []byte, n int) string {
	tail := lastLines(console, n)
	i := bytes.LastIndex(console, []byte("Kernel panic"))
	if i < 0 {
		return tail
	}
	line, _, _ := bytes.Cut(console[i:], []byte("\n"))
	if panicLine := printable(line); !strings.Contains(tail, panicLine) {
		tail = panicLine + "\n" + tail
	}
	return tail
}

// lastLines returns the last n lines that are not empty, without control characters.
func lastLines(console []byte, n int) string {
	var lines []string
	for len(console) > 0 && len(lines) < n {
		var line []byte
		i := bytes.LastIndexByte(console, '\n')
		line, console = console[i+1:], console[:max(i, 0)]
		if s := printable(line); s != "" {
			lines = append([]string{s}, lines...)
		}
	}
	return strings.Join(lines, "\n")
}

// printable makes a line of a guest safe to print.
func printable(line []byte) string {
	line = bytes.TrimSpace(line)
	if len(line) > maxConsoleLine {
		line = line[:maxConsoleLine]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(line), "?"))
}
