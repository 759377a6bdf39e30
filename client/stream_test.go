package client

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// An endless event is not read into memory, however many short events come before it.
func TestStreamsOfAHostileDaemon(t *testing.T) {
	count := func(n *int) io.Writer { return writerFunc(func(p []byte) (int, error) { *n++; return len(p), nil }) }
	for name, c := range map[string]struct {
		event  string // format of an event; a text replaces %s
		most   int
		events func(c *Client) (int, error)
	}{
		"build": {`{"output":{"number":1,"line":"%s"}}`, maxBuildEvent, func(c *Client) (n int, err error) {
			_, err = c.Build(t.Context(), BuildRequest{Tag: "x", Dockerfile: "FROM x\n"}, nil, func(BuildEvent) error {
				n++
				return nil
			})
			return n, err
		}},
		"exec": {`{"stdout":"%s"}`, maxExecEvent, func(c *Client) (n int, err error) {
			_, err = c.ExecStream(t.Context(), "sb-1", ExecRequest{Args: []string{"x"}}, count(&n), io.Discard)
			return n, err
		}},
		"code": {`{"stdout":"%s"}`, maxCodeEvent, func(c *Client) (n int, err error) {
			on := CodeHandlers{Keep: 1, Stdout: func(string) error { n++; return nil }}
			_, err = c.RunCode(t.Context(), "sb-1", CodeRequest{Code: "1"}, on)
			return n, err
		}},
	} {
		sent, short := 0, 2
		if name == "build" {
			short = c.most>>20 + 4 // more bytes than one event may have
		}
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			part := strings.Repeat("x", 1<<20)
			for range short {
				_, _ = fmt.Fprintf(w, c.event+"\n", part)
			}
			_, _ = io.WriteString(w, `{"error":"`)
			for range 4 * c.most >> 20 {
				n, err := io.WriteString(w, part)
				if sent += n; err != nil {
					return
				}
			}
		}))
		client, err := New(srv.URL, "")
		if err != nil {
			t.Fatal(err)
		}
		n, err := c.events(client)
		srv.Close() // waits for its handler
		if want := fmt.Sprintf("an event of more than %d MiB", c.most>>20); err == nil ||
			!strings.Contains(err.Error(), want) || n != short {
			t.Errorf("%s: %d events, want %d; %v, want %s", name, n, short, err, want)
		}
		if sent > 3*c.most {
			t.Errorf("%s: %d MiB of an event were read", name, sent>>20)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
