package agentclient

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/agentproto"
)

// peer returns a dial function whose other end is served by f.
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

// answer reads one request line and writes text.
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
			bufio.NewReader(c).ReadString('\n') // asked, never answered
			cancel()
		}
	}()
	if _, err := DialUnix(path)(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v", err)
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
		err := New(forkPeer(reply)).Forked(t.Context(), agentproto.Forked{Hostname: "h"})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("reply %q: err = %v, want %q", reply, err, want)
		}
		if err := New(forkPeer(reply)).Sync(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("reply %q to sync: err = %v, want %q", reply, err, want)
		}
	}
	c := New(forkPeer("\x00\x00\x00\x00"))
	c.settle = 0
	if err := c.Sync(t.Context()); err != nil {
		t.Error(err)
	}
	if err := New(forkPeer("\x00\x00\x00\x00")).Forked(t.Context(), agentproto.Forked{Hostname: "h"}); err != nil {
		t.Error(err)
	}
}

// forkPeer reads one fork message whole and answers reply.
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
		"forked": func(c *Client, ctx context.Context) error { return c.Forked(ctx, agentproto.Forked{}) },
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
		if _, err := New(httpPeer(200, body)).Eval(t.Context(), "1", EvalOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: err = %v", body, err)
		}
	}
	var refused *Error
	if _, err := New(httpPeer(404, "context \"x\" does not exist")).Eval(t.Context(), "1", EvalOptions{}); !errors.As(err, &refused) || refused.Code != CodeNotFound {
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

// TestExecOfASilentGuest checks that a guest that says nothing is told apart from a command that takes too long.
func TestExecOfASilentGuest(t *testing.T) {
	silent := peer(func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	r, err := New(silent).Exec(t.Context(), ExecRequest{Args: []string{"true"}, Timeout: 10 * time.Millisecond})
	if err != nil || r.Outcome != TimedOut || !strings.Contains(r.Status, "did not say") {
		t.Fatalf("%+v, %v", r, err)
	}
}
