package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
)

func TestDetachKeys(t *testing.T) {
	const p, q = "\x10", "\x11"
	for typed, want := range map[string]string{
		"plain":           "plain",
		"a" + p + "b":     "a" + p + "b",
		p + p + "b":       p + p + "b",
		"a" + q + p + "b": "a" + q + p + "b",
		"a" + p:           "a" + p,
		"a" + p + q + "b": "a",
		p + p + q + "b":   p,
	} {
		for name, from := range map[string]io.Reader{"at once": strings.NewReader(typed),
			"byte by byte": iotest.OneByteReader(strings.NewReader(typed))} {
			detached := false
			got, err := io.ReadAll(&detachKeys{from: from, detach: func() { detached = true }})
			leaves := strings.Contains(typed, p+q)
			if string(got) != want || detached != leaves || leaves != errors.Is(err, client.ErrDetached) {
				t.Errorf("%q %s: %q, %v, detached %v", typed, name, got, err, detached)
			}
		}
	}
}

// The terminal is in raw mode only while its keys are sent to a process. In raw mode, Ctrl-C has an
// effect only if a program reads it.
func TestTheTerminalIsLentWithItsKeys(t *testing.T) {
	rig := apirig.Start(t, apirig.Options{Agent: agentHere})
	if _, err := rig.Bake(t.Context(), rig.Parent); err != nil {
		t.Fatal(err)
	}
	f, err := rig.Fork(t.Context(), client.ForkRequest{SnapshotTag: rig.Parent.Tag, N: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	t.Setenv(urlEnv, rig.URL)
	t.Setenv(tokenEnv, apirig.Token)
	for _, flags := range []string{"-t", "-it"} {
		keyboard, tty, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer keyboard.Close()
		defer tty.Close()
		var said bytes.Buffer
		ended := make(chan int, 1)
		go func() {
			ended <- Main([]string{"exec", flags, id, "--", "sh", "-c", "echo began; exec sleep 1000"},
				Stdio{In: tty, Out: tty, Err: &said})
		}()
		for seen, buf := "", make([]byte, 64); !strings.Contains(seen, "began"); {
			n, err := keyboard.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			seen += string(buf[:n])
		}
		mode, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		list, err := rig.Processes(t.Context(), id)
		if err != nil || len(list) != 1 {
			t.Fatalf("processes: %+v, %v", list, err)
		}
		pid := list[0].PID
		if lent := mode.Lflag&unix.ISIG == 0; lent != (flags == "-it") {
			t.Errorf("exec %s: the terminal is lent: %v", flags, lent)
		}
		if flags == "-it" {
			if _, err := keyboard.WriteString("\x10\x11"); err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("process %d keeps running; to return to it: forkd attach -it %s %d", pid, id, pid)
			if code := <-ended; code != 0 || !strings.Contains(said.String(), want) {
				t.Errorf("after the keys that leave: exit code %d, %q", code, said.String())
			}
		}
		if err := rig.SignalProcess(t.Context(), id, pid, "KILL"); err != nil {
			t.Fatal(err)
		}
		if flags == "-t" {
			if code := <-ended; code != 128+9 {
				t.Errorf("exec %s: exit code %d", flags, code)
			}
		}
	}
}
