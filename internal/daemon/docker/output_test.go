package docker

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkd/forkd/internal/host/agentclient"
)

func TestOutputKeepsItsEnd(t *testing.T) {
	const most = 64 << 10
	o := newOutput(most)
	for i := range 10_000 {
		o.write(agentclient.Stdout, fmt.Appendf(nil, "line %d\n", i))
		if o.size > most {
			t.Fatalf("%d bytes are kept", o.size)
		}
	}
	o.write(agentclient.Stdout, []byte(strings.Repeat("x", 2*maxLine)+"\n"))
	kept, r := o.read()
	r.close()
	text := ""
	for _, e := range kept {
		if len(e.text) > maxLine {
			t.Errorf("an entry has %d bytes", len(e.text))
		}
		text += string(e.text)
	}
	if !strings.HasSuffix(text, strings.Repeat("x", 2*maxLine)+"\n") || strings.Contains(text, "line 1\n") {
		t.Errorf("%.100q…", text)
	}
}

// If the lines of both streams arrive in parts, they become whole lines.
func TestOutputJoinsLines(t *testing.T) {
	o := newOutput(maxLog)
	o.write(agentclient.Stdout, []byte("a"))
	o.write(agentclient.Stderr, []byte("x"))
	o.write(agentclient.Stdout, []byte("b\nc"))
	o.write(agentclient.Stderr, []byte("y\n"))
	kept, r := o.read()
	defer r.close()
	text := ""
	for _, e := range kept {
		text += fmt.Sprintf("%d%q ", e.from, e.text)
	}
	if text != `1"ab\n" 2"xy\n" 1"c" ` {
		t.Error(text)
	}
}

func TestReaderThatLeaves(t *testing.T) {
	o := newOutput(0)
	_, r := o.read()
	wrote := make(chan bool)
	go func() {
		o.write(agentclient.Stdout, []byte("x"))
		close(wrote)
	}()
	r.close() // the writer may wait for the reader
	<-wrote
	r.close()
	o.end()
	<-r.ended
}

func TestDetachKeys(t *testing.T) {
	k := detachKeys{on: true}
	text := ""
	for _, p := range []string{"a\x10", "b\x10\x10", "\x10c", "\x10"} {
		out, left := k.filter([]byte(p))
		if text += string(out); left {
			t.Fatalf("%q detaches", p)
		}
	}
	if text != "a\x10b\x10\x10\x10c" {
		t.Errorf("%q", text)
	}
	if out, left := k.filter([]byte("\x11z")); !left || len(out) != 0 {
		t.Errorf("%q %t", out, left)
	}
	off := detachKeys{}
	if out, left := off.filter([]byte("\x10\x11")); left || len(out) != 2 {
		t.Errorf("%q %t", out, left)
	}
}

func TestSplit(t *testing.T) {
	for name, want := range map[string][3]string{
		"a": {"a", "latest", "a"}, "a:1": {"a", "1", "a.1"}, "docker.io/library/a:1": {"a", "1", "a.1"},
		"x/a": {"x/a", "latest", ""}, "host:5000/a": {"host:5000/a", "latest", ""}, "host:5000/a:2": {"host:5000/a", "2", ""},
		"": {"", "latest", ""}, "..": {"..", "latest", ""},
	} {
		repository, tag := split(name)
		if got := [3]string{repository, tag, tagOf(name)}; got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

// Each line of a log has one frame of its own, with one time.
func TestLogLines(t *testing.T) {
	w := httptest.NewRecorder()
	l := &logWriter{w: w, rc: http.NewResponseController(w), stamps: true, within: map[agentclient.Stream]bool{}}
	at := time.Unix(0, 0)
	for _, text := range []string{"a\nb", "c\n", ""} {
		if err := l.write(agentclient.Stdout, at, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	const stamp = "1970-01-01T00:00:00.000000000Z "
	want := ""
	for _, line := range []string{stamp + "a\n", stamp + "b", "c\n"} {
		want += string(frame(agentclient.Stdout, []byte(line)))
	}
	if got := w.Body.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A killed process does not wait for a reader that reads nothing.
func TestRush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutput(0)
		_, r := o.read()
		wrote := make(chan bool)
		go func() {
			o.write(agentclient.Stdout, []byte("x"))
			close(wrote)
		}()
		synctest.Wait()
		select {
		case <-wrote:
			t.Error("the output was not received")
		default:
		}
		o.rush(nil)
		o.rush(nil)
		<-wrote
		select {
		case <-r.gone:
		default:
			t.Error("the reader is still waited for")
		}
		o.end()
		<-r.ended
	})
}

// A kill that comes after the end of a process does not hurry the next process.
func TestRushAfterTheEnd(t *testing.T) {
	o, ended := newOutput(0), make(chan struct{})
	o.rush(ended)
	close(ended)
	o.end()
	o.rush(ended)
	if o.killed {
		t.Error("the next process is hurried")
	}
}

// A killed process waits for all of its readers together, and not for each of them in turn, even if
// none of them reads.
func TestRushOfManyReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutput(0)
		for range 12 {
			o.read()
		}
		_, follower := o.read()
		received := make(chan int)
		go func() {
			n := 0
			for {
				select {
				case <-follower.chunks:
					n++
				case <-follower.ended:
					received <- n
					return
				}
			}
		}()
		begun := time.Now()
		o.rush(nil)
		for range 3 {
			o.write(agentclient.Stdout, []byte("x"))
			synctest.Wait() // the follower waits for the next output
		}
		if took := time.Since(begun); took != rushTime {
			t.Errorf("the process waited for %v, want %v", took, rushTime)
		}
		o.end()
		if n := <-received; n != 3 {
			t.Errorf("the reader that reads has received %d of 3", n)
		}
	})
}

// texts() returns all kept output.
func texts(t *testing.T, o *output) (text string) {
	t.Helper()
	kept, r, err := o.readAll()
	if err != nil {
		t.Fatal(err)
	}
	r.close()
	for _, e := range kept {
		text += string(e.text)
	}
	return text
}

// Output in a file takes no memory, and still comes before later output.
func TestStoredOutput(t *testing.T) {
	const most = 64 << 10
	o := newOutput(most)
	dir := t.TempDir()
	o.file = filepath.Join(dir, "a.log")
	store := func() {
		t.Helper()
		if err := o.store(); err != nil {
			t.Fatal(err)
		}
		if len(o.entries) != 0 || o.size != 0 {
			t.Errorf("%d entries with %d bytes are in memory", len(o.entries), o.size)
		}
	}
	store() // does nothing, because there is no output
	if o.stored {
		t.Error("a file without output")
	}
	for _, text := range []string{"a\n", "b\n"} {
		o.write(agentclient.Stdout, []byte(text))
		store()
		store()
	}
	o.write(agentclient.Stderr, []byte("c\n"))
	if got := texts(t, o); got != "a\nb\nc\n" {
		t.Errorf("%q", got)
	}
	for range 3 { // the file has only the end
		o.write(agentclient.Stdout, []byte(strings.Repeat("x", most/2)+"\n"))
		store()
	}
	if i, err := os.Stat(o.file); err != nil || i.Size() > most {
		t.Errorf("%v, %v", i, err)
	}
	if got := texts(t, o); len(got) < most/2 || strings.Trim(got, "x\n") != "" {
		t.Errorf("%.10q… of %d bytes", got, len(got))
	}
	if err := os.WriteFile(o.file, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := o.readAll(); err == nil {
		t.Error("a damaged file is no error")
	}
	o.write(agentclient.Stdout, []byte("d\n"))
	if err := o.store(); err == nil {
		t.Error("output is lost without an error")
	}
	if got := texts(t, o); got != "d\n" {
		t.Errorf("after a damaged file: %q", got)
	}
	if err := o.discard(); err != nil {
		t.Fatal(err)
	}
	o.write(agentclient.Stdout, []byte("e\n"))
	if err := o.store(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("a removed container leaves %v, %v", left, err)
	}
}

// poll calls its function rarely, and only until a time limit.
func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, begun := 0, time.Now()
		poll(func() bool { asked++; return false })
		if took := time.Since(begun); asked > 200 || took < 10*time.Second || took > 11*time.Second {
			t.Errorf("asked %d times in %v", asked, took)
		}
		asked, begun = 0, time.Now()
		poll(func() bool { asked++; return asked == 3 })
		if took := time.Since(begun); took > time.Millisecond {
			t.Errorf("%v for the third answer", took)
		}
	})
}
