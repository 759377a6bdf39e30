package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
)

// How a fix may be made.
const (
	safeFix   = "safe"   // --fix does it: it changes a file of forkd's only
	askFix    = "ask"    // --fix asks before: it changes the host, mostly until it is booted again
	manualFix = "manual" // never: it needs a decision, a reboot or another computer
)

// fix is what to do about a finding.
type fix struct {
	Kind    string `json:"kind"`
	Command string `json:"command"`          // a line for a shell
	Result  string `json:"result,omitempty"` // of --fix: "done", "would run", or why not
}

// outcome is what became of it, for a line of the report.
func (f *fix) outcome() string {
	if f.Result == "" {
		return ""
	}
	return " (" + f.Result + ")"
}

// safely, asRoot and byHand add to a finding how it is fixed.
func (f finding) safely(command string) finding {
	f.Fix = &fix{Kind: safeFix, Command: command}
	return f
}

// asRoot is for commands that only root may give.
func (f finding) asRoot(command string) finding {
	if os.Getuid() != 0 {
		command = "sudo sh -c " + quoted(command)
	}
	f.Fix = &fix{Kind: askFix, Command: command}
	return f
}

func (f finding) byHand(command string) finding {
	f.Fix = &fix{Kind: manualFix, Command: command}
	return f
}

// bootWith is the command that adds a parameter to the kernel's command line.
func bootWith(parameter string) string {
	return `sed -i 's/^GRUB_CMDLINE_LINUX="/&` + parameter + ` /' /etc/default/grub && update-grub # then reboot`
}

// fixer does what findings ask for.
type fixer struct {
	yes, dry bool
	in       *bufio.Reader // nil: nobody can be asked
	out      io.Writer     // what is done, and questions

	run func(ctx context.Context, command string, out io.Writer) error
}

func newFixer(cmd *cobra.Command, yes, dry bool) *fixer {
	f := &fixer{yes: yes, dry: dry, out: cmd.ErrOrStderr(), run: runShell}
	if in := cmd.InOrStdin(); isTerminalInput(in) {
		f.in = bufio.NewReader(in)
	}
	return f
}

func runShell(ctx context.Context, command string, out io.Writer) error {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, out, out // sudo may ask for a password
	return cmd.Run()
}

// fixAll does what it may about findings that are not well, and says in each what it did. It
// returns whether anything has changed.
func (x *fixer) fixAll(ctx context.Context, findings []finding) (changed bool) {
	for _, f := range findings {
		if f.Fix == nil || f.Fix.Kind == manualFix {
			continue
		}
		f.Fix.Result = x.fix(ctx, f)
		changed = changed || f.Fix.Result == "done"
		fmt.Fprintf(x.out, "forkd: %s: %s: %s\n", f.Check, f.Fix.Result, f.Fix.Command)
	}
	return changed
}

// fix does it if it may, and returns what became of it.
func (x *fixer) fix(ctx context.Context, f finding) string {
	switch {
	case x.dry:
		return "would run"
	case f.Fix.Kind == askFix && !x.yes && x.in == nil:
		return "not run, because it changes this host: give --yes"
	case f.Fix.Kind == askFix && !x.yes && !x.ask(f):
		return "not run"
	}
	if err := x.run(ctx, f.Fix.Command, x.out); err != nil {
		return "failed: " + err.Error()
	}
	return "done"
}

func (x *fixer) ask(f finding) bool {
	fmt.Fprintf(x.out, "forkd: %s: %s\n  change this host by: %s\n  [y/N] ", f.Check, f.Detail, f.Fix.Command)
	answer, err := x.in.ReadString('\n')
	if err != nil {
		fmt.Fprintln(x.out)
		return false
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}
