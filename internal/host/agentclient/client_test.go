package agentclient

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// peer returns a dial function that calls f with the other end of each connection.
func peer(f func(net.Conn)) DialFunc {
	return func(context.Context, uint32) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			f(theirs)
		}()
		return ours, nil
	}
}

// answer returns a function that reads one line of a request and writes the given text.
func answer(text string) func(net.Conn) {
	return func(c net.Conn) {
		bufio.NewReader(c).ReadString('\n')
		io.WriteString(c, text)
	}
}

func TestDialUnixHandshake(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vsock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			line, _ := bufio.NewReader(c).ReadString('\n')
			switch line {
			case "CONNECT 7\n":
				io.WriteString(c, "OK 1073\nfirst bytes")
			case "CONNECT 9\n":
				io.WriteString(c, strings.Repeat("x", 10*maxHandshake))
			default:
				io.WriteString(c, "ERR no listener\n")
			}
			c.Close()
		}
	}()
	dial := DialUnix(path)
	conn, err := dial(t.Context(), 7)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(conn); string(got) != "first bytes" {
		t.Fatalf("the stream begins with %q", got)
	}
	for port, want := range map[uint32]string{8: "ERR no listener", 9: "no line within"} {
		if _, err := dial(t.Context(), port); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("port %d: err = %v", port, err)
		}
	}
}

func TestDialUnixEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vsock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if c, err := l.Accept(); err == nil {
			bufio.NewReader(c).ReadString('\n') // reads the request and does not answer
			cancel()
		}
	}()
	if _, err := DialUnix(path)(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v", err)
	}
}

// If an agent is busy, it answers and closes the stream before it has read the port number.
// DialPort must still return the agent's refusal.
func TestDialPortOfABusyAgent(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := New(func(context.Context, uint32) (net.Conn, error) {
		ours, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			return nil, err
		}
		theirs, err := l.Accept()
		if err != nil {
			return nil, err
		}
		_, err = theirs.Write([]byte{byte(agentproto.DialBusy)})
		return ours, errors.Join(err, theirs.Close())
	})
	var refused *Error
	if _, err := c.DialPort(t.Context(), 1); !errors.As(err, &refused) || refused.Code != CodeUnavailable {
		t.Error(err)
	}
}

func TestControlReplies(t *testing.T) {
	for reply, want := range map[string]string{
		"{\"error\":\"ping: no\"}\n": "ping: no",
		"not json\n":                 "reply",
		"":                           "EOF",
		strings.Repeat("x", 2*maxControlReply) + "\n": "EOF",
	} {
		_, err := New(peer(answer(reply))).Ping(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("reply %.20q: err = %v, want %q", reply, err, want)
		}
	}
	if _, err := New(peer(answer("{}\n"))).Ping(t.Context()); err == nil {
		t.Error("a ping without ready was accepted")
	}
}

func TestForkAnswers(t *testing.T) {
	for reply, want := range map[string]string{
		"\x02\x00\x00\x00no":       "no",
		"\x03\x00\x00\x00no":       "EOF",
		"\x00\x00":                 "EOF",
		"":                         "EOF",
		"\x00\x00\x02\x00too long": "at most",
	} {
		_, err := New(forkPeer(reply)).Forked(t.Context(), agentproto.Forked{Hostname: "h"})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("reply %q: err = %v, want %q", reply, err, want)
		}
		if err := New(forkPeer(reply)).Sync(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("reply %q to sync: err = %v, want %q", reply, err, want)
		}
	}
	c := New(forkPeer("\x00\x00\x00\x00"))
	c.Quiet = 0
	if err := c.Sync(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := New(forkPeer("\x00\x00\x00\x00")).Forked(t.Context(), agentproto.Forked{Hostname: "h"}); err != nil {
		t.Error(err)
	}
}

// forkPeer reads a whole fork message and answers with the given reply.
func forkPeer(reply string) DialFunc {
	return peer(func(c net.Conn) {
		var head [agentproto.LengthSize]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		n, err := agentproto.Length(head[:], agentproto.MaxForked)
		if err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, c, int64(n)); err == nil {
			io.WriteString(c, reply)
		}
	})
}

func TestControlEndsWithItsContext(t *testing.T) {
	for name, call := range map[string]func(*Client, context.Context) error{
		"ping":   func(c *Client, ctx context.Context) error { _, err := c.Ping(ctx); return err },
		"sync":   (*Client).Sync,
		"forked": func(c *Client, ctx context.Context) error { _, err := c.Forked(ctx, agentproto.Forked{}); return err },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		err := call(New(peer(func(c net.Conn) {
			c.Read(make([]byte, 1))
			cancel()
			io.Copy(io.Discard, c)
		})), ctx)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: err = %v", name, err)
		}
	}
}

// httpPeer answers every request with one response.
func httpPeer(status int, body string) DialFunc {
	return peer(func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			fmt.Fprintf(c, "HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
		}
	})
}

func TestEvalRefusesABrokenStream(t *testing.T) {
	for body, want := range map[string]string{
		`{"type":"stdout","text":"x"}` + "\n": "ended before",
		"nonsense\n":                          "reply",
	} {
		if _, err := New(httpPeer(200, body)).Eval(t.Context(), "1", EvalOptions{}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: err = %v", body, err)
		}
	}
	var refused *Error
	if _, err := New(httpPeer(404, "context \"x\" does not exist")).Eval(t.Context(), "1", EvalOptions{}); !errors.As(err,
		&refused) || refused.Code != CodeNotFound {
		t.Errorf("err = %v", err)
	}
}

func TestFileErrorsCarryTheGuestsMessage(t *testing.T) {
	_, err := New(httpPeer(507, `{"code":507,"message":"disk is full"}`)).ReadFile(t.Context(), "/x", "")
	var refused *Error
	if !errors.As(err, &refused) || refused.Code != CodeNoSpace || refused.Message != "disk is full" {
		t.Fatalf("err = %v", err)
	}
}

func TestExecNeedsACommand(t *testing.T) {
	var refused *Error
	if _, err := New(nil).Exec(t.Context(), ExecRequest{}); !errors.As(err, &refused) || refused.Code != CodeInvalid {
		t.Fatalf("err = %v", err)
	}
}

// TestExecOfASilentGuest checks that the result distinguishes a guest that does not answer from a
// command that takes too long.
func TestExecOfASilentGuest(t *testing.T) {
	silent := peer(func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	r, err := New(silent).Exec(t.Context(), ExecRequest{Args: []string{"true"}, Timeout: 10 * time.Millisecond})
	if err != nil || r.Outcome != TimedOut || !strings.Contains(r.Status, "did not say") {
		t.Fatalf("%+v, %v", r, err)
	}
}

func TestEvalTellsHowATimeoutWent(t *testing.T) {
	for stream, want := range map[string]EvalResult{
		`{"type":"timeout"}`:                  {TimedOut: true},
		`{"type":"timeout","restarted":true}`: {TimedOut: true, Restarted: true},
	} {
		r, err := New(httpPeer(200, stream+"\n"+`{"type":"end_of_execution"}`)).Eval(t.Context(), "1",
			EvalOptions{Timeout: time.Hour})
		if err != nil || r.TimedOut != want.TimedOut || r.Restarted != want.Restarted || !errors.Is(r.Err(), ErrTimeout) {
			t.Errorf("%s: %+v, %v", stream, r, err)
		}
	}
	var refused *Error
	if _, err := New(httpPeer(409, "context python is busy")).Eval(t.Context(), "1", EvalOptions{}); !errors.As(err,
		&refused) || refused.Code != CodeBusy {
		t.Errorf("busy: %v", err)
	}
}

// TestExecUnpacksNothing checks that a guest cannot make the host decompress a message. The host
// bounds only the compressed size, so a decompressed message could be of any size.
func TestExecUnpacksNothing(t *testing.T) {
	accepted := make(chan string, 1)
	guest := peer(func(c net.Conn) {
		req, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		io.Copy(io.Discard, req.Body) // keep the connection open while the client still sends the body
		accepted <- req.Header.Get("Connect-Accept-Encoding")
		io.WriteString(c, "HTTP/1.1 200 x\r\nContent-Type: application/connect+json\r\nConnect-Content-Encoding: gzip\r\n"+
			"Content-Length: 6\r\n\r\n\x01\x00\x00\x00\x01x")
	})
	_, err := New(guest).Exec(t.Context(), ExecRequest{Args: []string{"true"}})
	if err == nil || !strings.Contains(err.Error(), "unknown encoding") {
		t.Errorf("err = %v", err)
	}
	if got := <-accepted; got != "" {
		t.Errorf("the client accepts %q", got)
	}
}

// streamHead is the beginning of the answer to a request that starts a command.
const streamHead = "HTTP/1.1 200 x\r\nContent-Type: application/connect+json\r\n\r\n"

// event returns a message of the answer that begins with streamHead.
func event(content string) string {
	content = `{"event":` + content + `}`
	return string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(content)))) + content
}

// noted is a reader without data that reports every read.
type noted chan struct{}

func (n noted) Read([]byte) (int, error) {
	n <- struct{}{}
	return 0, io.EOF
}

// Even if a guest reports twice that the command has started, the command's input is sent only
// once. If it were sent twice, two goroutines would read from one reader at the same time, which
// can crash the daemon.
func TestInputIsSentOnceWhateverTheGuestSays(t *testing.T) {
	guest := peer(func(c net.Conn) {
		req, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil || !strings.HasSuffix(req.URL.Path, "/Start") {
			return
		}
		started := event(`{"start":{"pid":7}}`)
		io.WriteString(c, streamHead+started+started)
		io.Copy(io.Discard, c)
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	input := make(noted, 10)
	go func() {
		_, err := New(guest).Exec(ctx, ExecRequest{Args: []string{"cat"}, Stdin: input})
		done <- err
	}()
	<-input
	select {
	case <-input:
		t.Error("the input was read by a second goroutine")
	case <-time.After(100 * time.Millisecond): // a second goroutine would have read the input by now
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// If a warm-up step writes far more output than the client keeps, the step is not killed.
func TestExecMayWriteMoreThanIsKept(t *testing.T) {
	guest := peer(func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			out := base64.StdEncoding.EncodeToString(make([]byte, 40_000))
			io.WriteString(c, streamHead+event(`{"start":{"pid":7}}`)+
				event(`{"data":{"stdout":"`+out+`"}}`)+event(`{"end":{"exited":true}}`))
		}
	})
	r, err := New(guest).Exec(t.Context(), ExecRequest{Args: []string{"make"}, MaxOutput: 1000})
	if err != nil || r.Outcome != Exited || !r.StdoutTruncated || len(r.Stdout) != 1000 {
		t.Errorf("%s, %q, %d bytes, %v", r.Outcome, r.Status, len(r.Stdout), err)
	}
}

// If the output is endless, the call ends when the output exceeds maxTotal, and not by a timeout.
// The output may come from the code or from a hostile guest.
func TestEvalEndsAtATotal(t *testing.T) {
	ended := make(chan struct{})
	guest := peer(func(c net.Conn) {
		defer close(ended)
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		line := `{"type":"stdout","text":"` + strings.Repeat("x", 1<<20) + "\"}\n"
		_, err := io.WriteString(c, "HTTP/1.1 200 x\r\n\r\n")
		for n := 0; err == nil && n < 100; n++ {
			_, err = io.WriteString(c, line)
		}
	})
	r, err := New(guest).Eval(t.Context(), "while True: print('x')", EvalOptions{Timeout: time.Hour})
	if err != nil || r.Error == nil || r.Error.Name != "OutputLimit" || !r.Truncated || len(r.Stdout) != defaultMaxOutput {
		t.Errorf("%+v, %d bytes, %v", r.Error, len(r.Stdout), err)
	}
	<-ended // the closed connection makes the guest interrupt the code
}

// The text of an error from a guest is bounded, like all texts from guests.
func TestErrorsOfGuestsAreCut(t *testing.T) {
	c := New(peer(func(conn net.Conn) {
		_, _ = bufio.NewReader(conn).ReadString('\n')
		_, _ = io.WriteString(conn, `{"error":"`+strings.Repeat("x", 65000)+`"}`+"\n")
	}))
	err := c.Unmount(t.Context(), agentproto.Volume{Slot: 1, Path: "/data"})
	if err == nil || len(err.Error()) > maxText+200 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
}
