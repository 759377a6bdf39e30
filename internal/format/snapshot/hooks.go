package snapshot

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Hooks are commands that the daemon runs in a sandbox before or after some of its operations. A nil
// hook runs nothing.
type Hooks struct {
	BeforeBranch  *Hook `json:"before_branch,omitempty"`
	AfterFork     *Hook `json:"after_fork,omitempty"`
	BeforeSuspend *Hook `json:"before_suspend,omitempty"`
	AfterResume   *Hook `json:"after_resume,omitempty"`
}

// Hook is one command. A stored hook has all fields.
type Hook struct {
	Args        []string `json:"args"`         // command and arguments, which no shell interprets
	TimeoutSecs int      `json:"timeout_secs"` // 1 to MaxHookSecs
	OnFailure   string   `json:"on_failure"`   // HookAborts or HookContinues
}

// Values of Hook.OnFailure: what happens to the operation if the hook fails.
const (
	HookAborts    = "abort"
	HookContinues = "continue"
)

// Bounds on a hook, and the time limit of a hook that names none. The bounds on the arguments limit
// the size of a sandbox's record, which the daemon keeps in memory.
const (
	MaxHookSecs     = 300
	DefaultHookSecs = 30
	maxHookArgs     = 64
	maxHookBytes    = 8 << 10
)

// Each calls f for each of the four hooks with its name in JSON, even if the hook is nil.
func (h *Hooks) Each(f func(name string, hook **Hook)) {
	f("before_branch", &h.BeforeBranch)
	f("after_fork", &h.AfterFork)
	f("before_suspend", &h.BeforeSuspend)
	f("after_resume", &h.AfterResume)
}

// Filled returns a copy of h in which each hook without a time limit has DefaultHookSecs, and each
// hook without a value of OnFailure has HookAborts.
func (h Hooks) Filled() Hooks {
	h.Each(func(_ string, hook **Hook) {
		if *hook == nil {
			return
		}
		filled := **hook
		if filled.TimeoutSecs == 0 {
			filled.TimeoutSecs = DefaultHookSecs
		}
		if filled.OnFailure == "" {
			filled.OnFailure = HookAborts
		}
		*hook = &filled
	})
	return h
}

// HookError names a field of a hook that lacks a value or violates a bound.
type HookError struct {
	Field  string // such as "before_branch.args"
	Reason string
}

func (e *HookError) Error() string { return e.Field + ": " + e.Reason }

// Check returns a *HookError for the first hook that lacks a field or violates a bound.
func (h Hooks) Check() error {
	var first *HookError
	h.Each(func(name string, hook **Hook) {
		if *hook == nil || first != nil {
			return
		}
		if field, reason := (*hook).check(); reason != "" {
			first = &HookError{name + "." + field, reason}
		}
	})
	if first == nil {
		return nil
	}
	return first
}

// check returns the first field that is wrong, and why it is wrong.
func (h *Hook) check() (field, reason string) {
	n := 0
	for _, arg := range h.Args {
		if strings.ContainsRune(arg, 0) || !utf8.ValidString(arg) {
			return "args", fmt.Sprintf("%.70q: want UTF-8 without a NUL byte", arg)
		}
		n += len(arg)
	}
	switch {
	case len(h.Args) == 0 || h.Args[0] == "":
		return "args", "empty: want a command and its arguments"
	case len(h.Args) > maxHookArgs:
		return "args", fmt.Sprintf("%d arguments: want at most %d", len(h.Args), maxHookArgs)
	case n > maxHookBytes:
		return "args", fmt.Sprintf("%d bytes: want at most %d; write a longer program to a file of the snapshot", n,
			maxHookBytes)
	case h.TimeoutSecs < 1 || h.TimeoutSecs > MaxHookSecs:
		return "timeout_secs", fmt.Sprintf("%d: want 1 to %d", h.TimeoutSecs, MaxHookSecs)
	case h.OnFailure != HookAborts && h.OnFailure != HookContinues:
		return "on_failure", fmt.Sprintf("%.20q: want abort or continue", h.OnFailure)
	}
	return "", ""
}
