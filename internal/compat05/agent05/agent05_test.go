package agent05

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	apiv1 "github.com/forkd/forkd/api/v1"
)

// guest answers with the contents of its fields.
type guest struct {
	ping apiv1.Pong
	exec func(context.Context, apiv1.ExecRequest) (apiv1.ExecResult, error)
	eval func(apiv1.EvalRequest) (apiv1.EvalResult, error)
}

func (g *guest) Ping(context.Context) (apiv1.Pong, error) { return g.ping, nil }

func (g *guest) Exec(ctx context.Context, req apiv1.ExecRequest) (apiv1.ExecResult, error) {
	return g.exec(ctx, req)
}

func (g *guest) Eval(_ context.Context, req apiv1.EvalRequest) (apiv1.EvalResult, error) {
	return g.eval(req)
}

// only(g) returns a function that returns the same server for every connection: a server for g.
func only(g Guest) func(net.Conn) *Server {
	s := New(g)
	return func(net.Conn) *Server { return s }
}

// serve serves g until t ends. The function that it returns makes a request like a client: it sends
// a line and then closes its sending side of the connection.
func serve(t *testing.T, g Guest) (ask func(line string) map[string]any, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, l, only(g)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; !errors.Is(err, context.Canceled) {
			t.Errorf("Serve: %v", err)
		}
	})
	return func(line string) map[string]any {
		t.Helper()
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, line); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		p, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		var answer map[string]any
		if err := json.Unmarshal(p, &answer); err != nil {
			t.Fatalf("%s: %q: %v", line, p, err)
		}
		return answer
	}, l.Addr().String()
}

func TestActions(t *testing.T) {
	two := "2"
	ask, _ := serve(t, &guest{
		ping: apiv1.Pong{Pong: true, WarmupReady: true, Warm: []string{"python"}},
		exec: func(_ context.Context, req apiv1.ExecRequest) (apiv1.ExecResult, error) {
			switch req.Args[0] {
			case "slow":
				return apiv1.ExecResult{ExecEnd: apiv1.ExecEnd{ExitCode: 124, TimedOut: true, Outcome: "timeout"}}, nil
			case "none":
				return apiv1.ExecResult{ExecEnd: apiv1.ExecEnd{ExitCode: 127, Outcome: "not_found", Error: "none: not found"}}, nil
			case "gone":
				return apiv1.ExecResult{}, errors.New("the sandbox is gone")
			}
			return apiv1.ExecResult{ExecEnd: apiv1.ExecEnd{ExitCode: 3, Outcome: "exited"}, Stdout: req.Args[1], Stderr: "e"},
				nil
		},
		eval: func(req apiv1.EvalRequest) (apiv1.EvalResult, error) {
			switch {
			case strings.Contains(req.Code, "numpy"):
				return apiv1.EvalResult{Stdout: "2.1"}, nil
			case req.Code == "1/0":
				return apiv1.EvalResult{Error: "ZeroDivisionError", Traceback: "at 1", ExitCode: 1}, nil
			case req.Code == "x = 1":
				return apiv1.EvalResult{}, nil
			}
			return apiv1.EvalResult{Result: &two}, nil
		},
	})
	for _, c := range []struct {
		line string
		want string // JSON of fields that the answer must have
	}{
		{`{"action":"ping"}` + "\n", `{"pong":true,"warmup_ready":true,"numpy_version":"2.1","agent_lang":"python","pid":1}`},
		{`{"action":"ping"}`, `{"pong":true}`}, // has no line feed
		{`{"action":"exec","args":["echo","o"],"timeout":30}` + "\n", `{"stdout":"o","stderr":"e","exit_code":3}`},
		{`{"action":"exec","args":["slow"],"timeout":2}` + "\n", `{"error":"command timed out after 2 s","exit_code":124}`},
		{`{"action":"exec","args":["none"]}` + "\n", `{"error":"none: not found","exit_code":127}`},
		{`{"action":"exec","args":["gone"]}` + "\n", `{"error":"the sandbox is gone","exit_code":1}`},
		{`{"action":"exec","args":[]}` + "\n", `{"error":"args: empty"}`},
		{`{"action":"exec","args":["a"],"timeout":-1}` + "\n", `{"error":"timeout: -1: want 0 to 3600 seconds"}`},
		{`{"action":"eval","code":"1+1"}` + "\n", `{"result":"2","exit_code":0}`},
		{`{"action":"eval","code":"x = 1"}` + "\n", `{"result":"None","exit_code":0}`},
		{`{"action":"eval","code":"1/0"}` + "\n", `{"error":"ZeroDivisionError","traceback":"at 1","exit_code":1}`},
		{`{"action":"fly"}` + "\n", `{"error":"action \"fly\": want ping, exec or eval"}`},
	} {
		var want map[string]any
		if err := json.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		got := ask(c.line)
		for field, v := range want {
			if got[field] != v {
				t.Errorf("%s: %s is %v, want %v", c.line, field, got[field], v)
			}
		}
	}
	// A request that a browser sends for a web page does not reach a sandbox.
	got := ask("POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n{\"action\":\"exec\",\"args\":[\"echo\",\"o\"]}\n")
	if text, _ := got["error"].(string); !strings.Contains(text, "not a line of JSON") {
		t.Errorf("HTTP was answered with %v", got)
	}
}

// No command of a client is still running when Serve returns.
func TestEndOfServe(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	g := &guest{exec: func(ctx context.Context, _ apiv1.ExecRequest) (apiv1.ExecResult, error) {
		close(began)
		<-ctx.Done()
		close(ended)
		return apiv1.ExecResult{}, ctx.Err()
	}}
	t.Run("served", func(t *testing.T) {
		_, addr := serve(t, g)
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := io.WriteString(conn, `{"action":"exec","args":["sleep"]}`+"\n"); err != nil {
			t.Fatal(err)
		}
		<-began
	})
	<-ended
}

// The connection of an endless request is closed.
func TestLongRequest(t *testing.T) {
	_, addr := serve(t, &guest{})
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	block := make([]byte, 64<<10)
	for {
		if _, err := conn.Write(block); err != nil {
			return // the server has closed the connection
		}
	}
}

// Sandboxes have loopback addresses that hosts do not use themselves.
func TestAddressesAreLocal(t *testing.T) {
	seen := map[string]bool{}
	for i := range 1000 {
		addr := Addr(fmt.Sprintf("sb-%d", i), Port)
		if addr != Addr(fmt.Sprintf("sb-%d", i), Port) {
			t.Fatalf("%s is not the address again", addr)
		}
		var a, b, c, port int
		if n, err := fmt.Sscanf(addr, "127.%d.%d.%d:%d", &a, &b, &c, &port); n != 4 || err != nil || a < 1 || a > 255 ||
			b < 0 || b > 255 ||
			c < 1 || c > 254 || port != Port {
			t.Errorf("%s: %v", addr, err)
		}
		seen[addr] = true
	}
	if len(seen) < 990 {
		t.Errorf("1000 sandboxes have %d addresses", len(seen))
	}
}
