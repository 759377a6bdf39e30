package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// busyThen answers 503 the given number of times, and then with JSON. It records the idempotency
// keys of the requests.
func busyThen(t *testing.T, times int, retryAfter, answer string) (url string, keys *[]string) {
	keys = &[]string{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*keys = append(*keys, r.Header.Get(onceHeader))
		if len(*keys) <= times {
			w.Header().Set("Retry-After", retryAfter)
			w.WriteHeader(http.StatusServiceUnavailable)
			w.Write([]byte(`{"error":"too many requests at once","code":"busy"}`))
			return
		}
		w.Write([]byte(answer))
	}))
	t.Cleanup(srv.Close)
	return srv.URL, keys
}

// The client repeats only calls that are safe to repeat. All attempts of a call have the same
// idempotency key.
func TestRetries(t *testing.T) {
	fork := func(ctx context.Context, c *Client) error {
		_, err := c.Fork(ctx, ForkRequest{SnapshotTag: "x", N: 1})
		return err
	}
	list := func(ctx context.Context, c *Client) error { _, err := c.Snapshots(ctx); return err }
	page := func(ctx context.Context, c *Client) error {
		_, _, err := c.SnapshotPage(ctx, PageRequest{})
		return err
	}
	kill := func(ctx context.Context, c *Client) error { return c.Kill(ctx, "sb-1") }
	for _, c := range []struct {
		name           string
		call           func(context.Context, *Client) error
		answer, after  string
		retries, times int
		calls          int
		fails, keyed   bool
	}{
		{"a fork", fork, `{"sandboxes":[{"id":"sb-1"}]}`, "1", 2, 1, 2, false, true},
		{"a list", list, "[]", "1", 2, 1, 2, false, false},
		{"a page", page, "[]", "1", 2, 1, 2, false, false},
		{"a list, too often", list, "[]", "1", 1, 5, 2, true, false},
		{"a list, without Retry-After", list, "[]", "", 2, 1, 1, true, false},
		{"a list, by default", list, "[]", "1", 0, 1, 1, true, false},
		{"a fork, by default", fork, "{}", "1", 0, 1, 1, true, false},
		{"a deletion", kill, "{}", "1", 2, 1, 1, true, false},
		{"a list, beyond the deadline", list, "[]", "3600", 2, 1, 1, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			url, keys := busyThen(t, c.times, c.after, c.answer)
			cl, err := New(url, "", WithRetries(c.retries))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := c.call(ctx, cl); (err != nil) != c.fails || err != nil && !errors.Is(err, ErrBusy) {
				t.Errorf("%v", err)
			}
			if len(*keys) != c.calls {
				t.Errorf("%d requests, want %d", len(*keys), c.calls)
			}
			for _, key := range *keys {
				if (key != "") != c.keyed || key != (*keys)[0] {
					t.Errorf("keys %q", *keys)
				}
			}
		})
	}
}

// A ConnectionError says whether anything was sent.
func TestConnectionErrors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Read(make([]byte, 1))
			conn.Close()
		}
	}()
	ask := func() *ConnectionError {
		c, err := New("http://"+l.Addr().String(), "")
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Fork(t.Context(), ForkRequest{SnapshotTag: "x", N: 1})
		var away *ConnectionError
		if !errors.As(err, &away) {
			t.Fatalf("%T %v", err, err)
		}
		return away
	}
	if e := ask(); !e.Sent {
		t.Errorf("a daemon that hung up: %v", e)
	}
	l.Close()
	if e := ask(); e.Sent {
		t.Errorf("a daemon that is away: %v", e)
	}
}

// If the context ends, the error is the error of the context, and not a failure of the connection.
func TestContextErrorsAreTheContexts(t *testing.T) {
	c, err := New("http://127.0.0.1:1", "", WithRetries(3))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Healthy(ctx); !errors.Is(err, context.Canceled) || errors.As(err, new(*ConnectionError)) {
		t.Errorf("%v", err)
	}
}

// A wrong argument is refused with an error that names it, and nothing is sent.
func TestArgumentsAreChecked(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a request for %s", r.URL)
	}))
	defer srv.Close()
	c, err := New(srv.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	exec := func(req ExecRequest) error { _, err := c.Exec(ctx, "sb-1", req); return err }
	code := func(req CodeRequest) error { _, err := c.RunCode(ctx, "sb-1", req, CodeHandlers{}); return err }
	fork := func(req ForkRequest) error { _, err := c.Fork(ctx, req); return err }
	for _, test := range []struct {
		field string
		err   error
	}{
		{"args", exec(ExecRequest{})}, {"args", exec(ExecRequest{Args: []string{""}})},
		{"args", exec(ExecRequest{Args: []string{"a", "\x00"}})},
		{"cwd", exec(ExecRequest{Args: []string{"ls"}, Cwd: "\x00"})}, {"env",
			exec(ExecRequest{Args: []string{"ls"}, Env: map[string]string{"": "x"}})},
		{"timeout_secs", exec(ExecRequest{Args: []string{"ls"}, TimeoutSecs: -1})},
		{"cols", exec(ExecRequest{Args: []string{"ls"}, TTY: &TTYSize{Cols: 1 << 16}})},
		{"language", code(CodeRequest{Language: "python", ContextID: "python"})},
		{"timeout_secs", code(CodeRequest{TimeoutSecs: 3601})},
		{"snapshot_tag", fork(ForkRequest{N: 1})}, {"source_id", fork(ForkRequest{N: 1, SnapshotTag: "x", SourceID: "y"})},
		{"n", fork(ForkRequest{SnapshotTag: "x"})},
		{"ttl_secs", fork(ForkRequest{SnapshotTag: "x", N: 1, TTLSecs: -1})},
		{"idle_timeout_secs", fork(ForkRequest{SnapshotTag: "x", N: 1, IdleTimeoutSecs: -1})},
		{"id", c.Kill(ctx, "..")}, {"tag", c.VerifySnapshot(ctx, "")}, {"name", c.DeleteWorkspace(ctx, ".")},
		{"path", c.RemoveFile(ctx, "sb-1", "")},
		{"to", func() error { _, err := c.MoveFile(ctx, "sb-1", "a", ""); return err }()},
		{"depth", func() error { _, err := c.ListFiles(ctx, "sb-1", "/", 65); return err }()},
		{"port", func() error { _, err := c.DialPort(ctx, "sb-1", 0); return err }()},
		{"url", func() error { _, err := New("ftp://x", ""); return err }()},
		{"retries", func() error { _, err := New(srv.URL, "", WithRetries(-1)); return err }()},
	} {
		var wrong *ArgumentError
		if !errors.As(test.err, &wrong) || wrong.Field != test.field {
			t.Errorf("want %s: %v", test.field, test.err)
		}
	}
}
