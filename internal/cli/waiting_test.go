package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
)

// The waiting line is shown, is removed before other output, and leaves nothing behind.
func TestWaitingIsShown(t *testing.T) {
	var out log
	w := startWaiting(&out, "forkd verify base", time.Millisecond)
	for !strings.Contains(out.String(), "s  forkd verify base") && t.Context().Err() == nil {
		time.Sleep(time.Millisecond)
	}
	fmt.Fprint(w.before(&out), "base: intact\n")
	w.end()
	text := out.String()
	before, after, printed := strings.Cut(text, clearLine+"base: intact\n")
	if !printed || !strings.HasSuffix(before, "verify base") || after != "" && !strings.HasSuffix(after, clearLine) {
		t.Errorf("on the terminal: %q", text)
	}
}

// On a terminal, a command that waits for a long time shows the waiting line.
func TestACommandSaysOnATerminalThatItWaits(t *testing.T) {
	control, terminal := openPTY(t)
	c := common{output: "text", url: "unix:///none"}
	cmd := &cobra.Command{Use: "verify"}
	cmd.SetErr(terminal)
	cmd.SetContext(t.Context())
	shown := make([]byte, 0, 100)
	err := c.run(cmd, func(context.Context, *client.Client) error {
		for !strings.Contains(string(shown), "s  verify") {
			var p [100]byte
			n, err := control.Read(p[:])
			if err != nil {
				return err
			}
			shown = append(shown, p[:n]...)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// openPTY returns both ends of a pseudo-terminal.
func openPTY(t *testing.T) (control, terminal *os.File) {
	t.Helper()
	t.Setenv("TERM", "xterm") // no line is redrawn on a dumb terminal
	control, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { control.Close() })
	n, err := unix.IoctlGetInt(int(control.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(control.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(filepath.Join("/dev/pts", fmt.Sprint(n)), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	return control, terminal
}

// Without a terminal, every stage is printed as one line, and details are not printed.
func TestStagesAreLines(t *testing.T) {
	var out log
	s := newStatus(&out)
	s.step("fetch", "a")
	s.step("fetch", "b")
	s.step("unpack", "")
	s.end()
	if got := out.String(); got != "forkd: fetch\nforkd: unpack\n" {
		t.Errorf("%q", got)
	}
}

// On a terminal, all stages use the same line, which is cleared at the end.
func TestStagesShareALineOnATerminal(t *testing.T) {
	control, terminal := openPTY(t)
	s := newStatus(terminal)
	s.step("fetch", "1 of 2")
	var shown strings.Builder
	read := func(until string) {
		for !strings.Contains(shown.String(), until) {
			var p [100]byte
			n, err := control.Read(p[:])
			if err != nil {
				t.Fatal(err)
			}
			shown.Write(p[:n])
		}
	}
	read("s  fetch  1 of 2")
	s.step("unpack", "")
	read("s  unpack")
	s.end()
	read("unpack  " + clearLine)
}
