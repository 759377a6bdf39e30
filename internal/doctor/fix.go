package doctor

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// Kinds of fixes.
const (
	safeFix   = "safe"   // --fix runs it without a question: it changes only a file of forkd
	askFix    = "ask"    // --fix asks first: the fix changes the host, usually until the next boot
	manualFix = "manual" // --fix never runs it: it needs a decision, a reboot or another computer
)

// Fix says what to do about a finding.
type Fix struct {
	Kind    string `json:"kind"`
	Command string `json:"command"`          // a line for a shell
	Result  string `json:"result,omitempty"` // set by a Fixer: "done", "would run", or why it was not run
}

func safely(command string) Fix { return Fix{Kind: safeFix, Command: command} }
func byHand(command string) Fix { return Fix{Kind: manualFix, Command: command} }

// asRoot returns a fix whose command only root can run.
func asRoot(command string) Fix {
	if os.Getuid() != 0 {
		command = "sudo sh -c " + quoted(command)
	}
	return Fix{Kind: askFix, Command: command}
}

// bootWith returns the fix that adds a parameter to the kernel's command line.
func bootWith(parameter string) Fix {
	return byHand(`sed -i 's/^GRUB_CMDLINE_LINUX="/&` + parameter + ` /' /etc/default/grub && update-grub # then reboot`)
}

// String returns the command and, once it was tried, its result.
func (x *Fix) String() string {
	if x.Result == "" {
		return x.Command
	}
	return x.Command + " (" + x.Result + ")"
}

// Fixer runs the fixes of findings.
type Fixer struct {
	Yes, Dry bool          // Yes: run without questions; Dry: run nothing
	In       *bufio.Reader // receives answers to questions; nil if not interactive
	Out      io.Writer     // progress and questions

	run func(ctx context.Context, command string, out io.Writer) error // runs a command; if nil, a shell runs it
}

func runShell(ctx context.Context, command string, out io.Writer) error {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, out, out // sudo may ask for a password
	return cmd.Run()
}

// FixAll runs the permitted fixes and records the results in the findings. It reports whether a fix
// has changed anything.
func (x *Fixer) FixAll(ctx context.Context, findings []Finding) (changed bool) {
	for _, f := range findings {
		if f.Fix == nil || f.Fix.Kind == manualFix {
			continue
		}
		f.Fix.Result = x.fix(ctx, f)
		changed = changed || f.Fix.Result == "done"
		fmt.Fprintf(x.Out, "forkd: %s: %s: %s\n", f.Check, f.Fix.Result, f.Fix.Command)
	}
	return changed
}

// fix runs the fix of f, if that is permitted, and returns the result.
func (x *Fixer) fix(ctx context.Context, f Finding) string {
	switch {
	case x.Dry:
		return "would run"
	case f.Fix.Kind == askFix && !x.Yes && x.In == nil:
		return "not run, because it changes this host: give --yes"
	case f.Fix.Kind == askFix && !x.Yes && !x.ask(f):
		return "not run"
	}
	run := x.run
	if run == nil {
		run = runShell
	}
	if err := run(ctx, f.Fix.Command, x.Out); err != nil {
		return "failed: " + err.Error()
	}
	return "done"
}

func (x *Fixer) ask(f Finding) bool {
	fmt.Fprintf(x.Out, "forkd: %s: %s\n  change this host by: %s\n  [y/N] ", f.Check, f.Detail, f.Fix.Command)
	answer, err := x.In.ReadString('\n')
	if err != nil {
		fmt.Fprintln(x.Out)
		return false
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}
