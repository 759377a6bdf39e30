package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// What a guest has put into an error does nothing to the terminal that it is shown on.
func TestErrorsAreForReading(t *testing.T) {
	got := printable(errors.New("guest: \x1b]52;c;ZXZpbA==\a\x1b[2Jdone\r\u202eñ\n\tnext"))
	const want = "guest: \ufffd]52;c;ZXZpbA==\ufffd\ufffd[2Jdone\ufffd\ufffdñ\n\tnext"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// What commands print of a guest's words does nothing to the terminal either, and what stands in a line
// begins none.
func TestWordsOfGuestsAreForReading(t *testing.T) {
	const hostile = "\x1b]52;c;ZXZpbA==\aevil\r\nforkd: all is well"
	var out strings.Builder
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	for name, print := range map[string]func(){
		"ping, kernel":       func() { printPong(&out, client.Pong{Kernel: hostile}) },
		"ping, interpreters": func() { printPong(&out, client.Pong{Warm: []string{"python", hostile}}) },
		"build, errors": func() {
			printBuilt(cmd, built{Baked: client.Baked{GuestErrors: []string{"an error", hostile}}})
		},
		"unique": func() {
			printRepeats(cmd, client.Sandbox{Unique: &client.Unique{Repeats: []client.Generator{{Program: hostile}}}})
		},
	} {
		out.Reset()
		print()
		if text := out.String(); strings.ContainsAny(text, "\x1b\a\r") || !strings.Contains(text, "evil") ||
			strings.Contains(text, "\nforkd: all is well") {
			t.Errorf("%s: %q", name, text)
		}
	}
	for name, print := range map[string]func(){ // of more than one line
		"build, warm-up": func() { printWarmup(cmd, built{Baked: client.Baked{WarmupOutput: "a\tb\n" + hostile + "\n"}}) },
		"eval, error":    func() { printEval(&out, &out, client.EvalResult{Error: "a\tb\n" + hostile}) },
	} {
		out.Reset()
		print()
		if text := out.String(); strings.ContainsAny(text, "\x1b\a\r") || !strings.Contains(text, "a\tb\n\ufffd]52;") {
			t.Errorf("%s: %q", name, text)
		}
	}
	out.Reset()
	printPong(&out, client.Pong{Kernel: "6.12.1", Warm: []string{"python", "node"}})
	if text := out.String(); text != "pong: kernel 6.12.1, warm interpreters [python node]\n" {
		t.Errorf("%q", text)
	}
}
