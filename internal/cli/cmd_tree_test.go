package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
)

// TestTreeIsDrawnAgain watches a tree on a terminal while it grows.
func TestTreeIsDrawnAgain(t *testing.T) {
	rig := apirig.Start(t, apirig.Options{Agent: agentHere})
	if _, err := rig.Bake(t.Context(), rig.Parent); err != nil {
		t.Fatal(err)
	}
	t.Setenv(urlEnv, rig.URL)
	t.Setenv(tokenEnv, apirig.Token)
	t.Setenv("TERM", "xterm")
	screen, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	if err := pty.Setsize(screen, &pty.Winsize{Rows: 4, Cols: 80}); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- Main([]string{"tree", "--watch"}, Stdio{In: tty, Out: tty, Err: &said})
		tty.Close()
	}()
	until := func(text string) {
		t.Helper()
		for seen, buf := "", make([]byte, 256); !strings.Contains(seen, text); {
			n, err := screen.Read(buf)
			if err != nil {
				t.Fatalf("%v after %q; %s", err, seen, said.String())
			}
			seen += string(buf[:n])
		}
	}
	until(rig.Parent.Tag)
	f, err := rig.Fork(t.Context(), client.ForkRequest{SnapshotTag: rig.Parent.Tag, N: 1})
	if err != nil {
		t.Fatal(err)
	}
	until("└─ " + f.Sandboxes[0].ID)
	if _, err := rig.Fork(t.Context(), client.ForkRequest{SnapshotTag: rig.Parent.Tag, N: 2}); err != nil {
		t.Fatal(err)
	}
	until("and 2 more")
	rig.Server.CloseClientConnections() // the end of the stream ends the command
	if code := <-ended; code != exitError {
		t.Errorf("exit code %d, %s", code, said.String())
	}
}

func TestWatchingNeedsATerminal(t *testing.T) {
	for _, args := range [][]string{{"tree", "--watch"}, {"tree", "--watch", "-o", "json"}} {
		var said bytes.Buffer
		code := Main(args, Stdio{Out: &said, Err: &said})
		if code != exitUsage || !strings.Contains(said.String(), "forkd events") {
			t.Errorf("%v: exit code %d, %s", args, code, said.String())
		}
	}
}
