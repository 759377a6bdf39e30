package integration_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// process is a command that a test interacts with.
type process struct {
	*client.Process
	out *os.File
	end chan error // has room for one error
	how client.ExecEnd
}

// follow waits for the end of a process in the background.
func follow(t *testing.T, p *client.Process, err error) *process {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	out, w, err := os.Pipe() // a pipe has a buffer, so output can arrive while the test does not read
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	f := &process{Process: p, out: out, end: make(chan error, 1)}
	go func() {
		defer w.Close()
		var err error
		f.how, err = p.Wait(w, w)
		f.end <- err
	}()
	return f
}

func (p *process) says(t *testing.T, text string) {
	t.Helper()
	var got []byte
	for buf := make([]byte, 1); !bytes.HasSuffix(got, []byte(text)); {
		if _, err := p.out.Read(buf); err != nil {
			t.Fatalf("after %q: %v, want %q", got, err, text)
		}
		got = append(got, buf[0])
	}
}

func (p *process) ends(t *testing.T, code int) {
	t.Helper()
	if err := <-p.end; err != nil || p.how.ExitCode != code {
		t.Errorf("%+v, %v, want code %d", p.how, err, code)
	}
}

// TestCommandsAsTheyRun interacts with commands in a guest through a terminal, long input and
// signals, across a branch and a rollback.
func TestCommandsAsTheyRun(t *testing.T) {
	d := load(t).start(t, withChecks, withPool(0))
	box := d.fork(t, 1)[0]
	ctx := d.ctx(t, bakeLimit)
	start := func(script string, tty *client.TTYSize) *process {
		t.Helper()
		p, err := d.StartExec(ctx, box.ID, client.ExecRequest{Args: []string{"sh", "-c", script}, OpenStdin: true, TTY: tty})
		return follow(t, p, err)
	}
	p := start("stty -echo; stty size; read x; stty size", &client.TTYSize{Cols: 101, Rows: 43})
	p.says(t, "43 101\r\n")
	if err := p.Resize(client.TTYSize{Cols: 99, Rows: 33}); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(p)
	p.says(t, "33 99\r\n")
	p.ends(t, 0)

	p = start("trap 'exit 7' INT; echo ready; sleep 1000 & wait", nil)
	p.says(t, "ready\n")
	if err := p.Signal("INT"); err != nil {
		t.Fatal(err)
	}
	p.ends(t, 7)

	input := bytes.Repeat([]byte("0123456789abcde\xff"), 1<<16)
	p = start("cat", nil)
	echoed := make(chan bool, 1)
	go func() { // write the input while the output is read
		_, err := p.Write(input)
		echoed <- err == nil && p.CloseStdin() == nil
	}()
	if echo, err := io.ReadAll(p.out); err != nil || sha256.Sum256(echo) != sha256.Sum256(input) {
		t.Errorf("%d bytes came back of %d: %v", len(echo), len(input), err)
	}
	p.ends(t, 0)
	if !<-echoed {
		t.Error("the input was not taken")
	}

	pid, err := d.ExecDetached(ctx, box.ID, client.ExecRequest{Args: []string{"sh", "-c", "read x; echo got $x; exit 5"},
		OpenStdin: true})
	if err != nil {
		t.Fatal(err)
	}
	attach := func(id string) *process {
		t.Helper()
		p, err := d.Attach(ctx, id, pid)
		return follow(t, p, err)
	}
	source := attach(box.ID)
	d.branchOf(t, box.ID, "waiting", "live")
	child := d.forkOf(t, "waiting", 1)[0]
	fmt.Fprintln(source, "source")
	source.says(t, "got source\n")
	source.ends(t, 5)
	inChild := attach(child.ID)
	fmt.Fprintln(inChild, "child")
	inChild.says(t, "got child\n")
	inChild.ends(t, 5)
	d.kill(t, child)

	p = start("echo up; sleep 1000", nil)
	p.says(t, "up\n")
	if _, err := d.Rollback(ctx, box.ID, "waiting"); err != nil {
		t.Fatal(err)
	}
	if err := <-p.end; !client.IsStatus(err, http.StatusConflict) || !strings.Contains(err.Error(), "rolled back") {
		t.Errorf("a stream over a rollback: %v", err)
	}
	p = attach(box.ID) // the process of the snapshot waits for input
	fmt.Fprintln(p, "again")
	p.says(t, "got again\n")
	p.ends(t, 5)
	d.kill(t, box)
	d.removeBranches(t)
}
