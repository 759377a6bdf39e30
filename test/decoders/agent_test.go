package decoders

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// repeated returns a function that makes a JSON message of about n bytes, in which an element is
// repeated.
func repeated(head, element, tail string) func(int) []byte {
	return func(n int) []byte {
		count := max(1, (n-len(head)-len(tail))/(len(element)+1))
		return []byte(head + strings.Repeat(element+",", count-1) + element + tail)
	}
}

// numbered is like repeated, but each element contains its number, because the elements' names must
// be unique.
func numbered(head, format, tail string) func(int) []byte {
	return func(n int) []byte {
		b := []byte(head)
		for i := 0; len(b) < n; i++ {
			b = append(fmt.Appendf(b, format, i), ',')
		}
		return append(bytes.TrimSuffix(b, []byte(",")), tail...)
	}
}

// deep returns a function that makes an element of about n bytes, nested as deeply as possible.
func deep(open, inner, shut string) func(int) []byte {
	return func(n int) []byte {
		count := n / (len(open) + len(shut))
		return []byte(strings.Repeat(open, count) + inner + strings.Repeat(shut, count))
	}
}

// guest returns a client of an agent that answers every request with the given body.
func guest(contentType string, status int, body []byte) *agentclient.Client {
	return agentclient.New(func(context.Context, uint32) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			req, err := http.ReadRequest(bufio.NewReader(theirs))
			if err != nil {
				return
			}
			if _, err = io.Copy(io.Discard, req.Body); err == nil {
				_, err = fmt.Fprintf(theirs, "HTTP/1.1 %d x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", status, contentType,
					len(body))
			}
			if err == nil {
				_, _ = theirs.Write(body) // fails if the client has closed the connection
			}
		}()
		return ours, nil
	})
}

// raw returns a client of an agent that answers with the given bytes, which need not be HTTP.
func raw(answer []byte) *agentclient.Client {
	return agentclient.New(func(context.Context, uint32) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			if _, err := theirs.Read(make([]byte, 64<<10)); err == nil {
				_, _ = theirs.Write(answer)
			}
		}()
		return ours, nil
	})
}

// decoded bounds the memory for the longest decoded list, in addition to the bytes of the answer.
const decoded = 16 << 20

// callRows tests calls whose answer is one message of JSON.
func callRows() (rows []row) {
	calls := []struct {
		name  string
		most  int
		fixed int
		field string // name of the field that has the entries
		call  func(context.Context, *agentclient.Client) error
	}{
		{"stat", 60 << 10, 4 << 20, "entry", func(ctx context.Context, c *agentclient.Client) error {
			_, err := c.Stat(ctx, "/a", "")
			return err
		}},
		{"list", 7 << 20, decoded, "entries", func(ctx context.Context, c *agentclient.Client) error {
			_, err := c.List(ctx, "/", "", 1)
			return err
		}},
		{"mkdir", 60 << 10, 4 << 20, "entry", func(ctx context.Context, c *agentclient.Client) error {
			_, err := c.MakeDir(ctx, "/a", "")
			return err
		}},
		{"move", 60 << 10, 4 << 20, "entry", func(ctx context.Context, c *agentclient.Client) error {
			_, err := c.Move(ctx, "/a", "/b", "")
			return err
		}},
		{"remove", 60 << 10, 4 << 20, "x", func(ctx context.Context, c *agentclient.Client) error {
			return c.Remove(ctx, "/a", "")
		}},
		{"signal", 60 << 10, 4 << 20, "x", func(ctx context.Context, c *agentclient.Client) error {
			return c.Process(1).Signal(ctx, 9)
		}},
		{"processes", 1000 << 10, decoded, "processes", func(ctx context.Context, c *agentclient.Client) error {
			_, err := c.Processes(ctx)
			return err
		}},
	}
	for _, c := range calls {
		array := `{"` + c.field + `":[`
		for what, input := range map[string]func(int) []byte{
			"empty entries":   repeated(array, `{}`, `]}`),
			"as many as pass": func(n int) []byte { return repeated(array, `{}`, `]}`)(min(n, 3*19_990)) },
			"arguments":       repeated(array+`{"config":{"args":[`, `""`, `]}}]}`),
			"variables":       numbered(array+`{"config":{"envs":{`, `"%d":""`, `}}}]}`),
			"nested":          deep(`{"x":[`, `1`, `]}`),
			"unknown fields":  numbered(`{`, `"x%d":{}`, `}`),
			"a long text":     repeated(array+`{"name":"`, `aaaaaaa`, `"}]}`),
		} {
			call := c.call
			rows = append(rows, row{name: c.name + "/" + what, input: input, most: c.most, fixed: c.fixed,
				decode: func(t *testing.T, p []byte) {
					_ = call(t.Context(), guest("application/json", http.StatusOK, p))
				}})
		}
		rows = append(rows, row{name: c.name + "/an error", input: repeated(`{"code":"internal","message":"x","details":[`,
			`{}`, `]}`), most: c.most,
			fixed: c.fixed, decode: func(t *testing.T, p []byte) {
				_ = c.call(t.Context(), guest("application/json", http.StatusInternalServerError, p))
			}})
	}
	return rows
}

// message returns one message of a stream. The flag of the last message is 2.
func message(flag byte, content []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flag}, uint32(len(content))), content...)
}

// streamRows tests the messages of commands, watches and evaluations.
func streamRows() (rows []row) {
	exec := func(t *testing.T, p []byte) {
		_, _ = guest("application/connect+json", http.StatusOK, p).Exec(t.Context(),
			agentclient.ExecRequest{Args: []string{"x"}})
	}
	watch := func(t *testing.T, p []byte) {
		c := guest("application/connect+json", http.StatusOK, p)
		_ = c.Watch(t.Context(), "/", "", true, func(agentclient.Change) error { return nil })
	}
	many := func(content string) func(int) []byte {
		one := message(0, []byte(content))
		return func(n int) []byte { return bytes.Repeat(one, n/len(one)) }
	}
	single := func(flag byte, input func(int) []byte) func(int) []byte {
		return func(n int) []byte { return message(flag, input(n)) }
	}
	for name, decode := range map[string]func(*testing.T, []byte){"exec": exec, "watch": watch} {
		for what, input := range map[string]func(int) []byte{
			"one large message": single(0, repeated(`{"event":{"x":[`, `{}`, `]}}`)),
			"an error's parts":  single(2, repeated(`{"error":{"code":"internal","details":[`, `{}`, `]}}`)),
			"trailers":          single(2, numbered(`{"metadata":{`, `"%d":[]`, `}}`)),
			"a long end":        single(0, repeated(`{"event":{"end":{"status":"`, `aaa`, `"}}}`)),
		} {
			rows = append(rows, row{name: name + "/" + what, input: input, decode: decode, most: 60 << 10, fixed: 4 << 20})
		}
		// The factors are large, because even an empty message allocates some hundred bytes.
		rows = append(rows, row{name: name + "/small messages", input: many(`{}`), decode: decode, factor: 200},
			row{name: name + "/starts", input: many(`{"event":{"start":{"pid":7}}}`), decode: decode, factor: 50})
	}
	code := func(t *testing.T, p []byte) {
		_, _ = guest("application/x-ndjson", http.StatusOK, p).RunCode(t.Context(), agentclient.CodeRequest{Code: "1"},
			agentclient.CodeSink{
				Started:   func(int) error { return nil },
				Output:    func(agentclient.Stream, string) error { return nil },
				Result:    func(bool, map[string]json.RawMessage) error { return nil },
				Exception: func(agentclient.EvalError) error { return nil },
			})
	}
	contexts := func(t *testing.T, p []byte) {
		_, _ = guest("application/json", http.StatusOK, p).Contexts(t.Context())
	}
	eval := func(t *testing.T, p []byte) {
		_, _ = guest("application/x-ndjson", http.StatusOK, p).Eval(t.Context(), "1", agentclient.EvalOptions{})
	}
	lines := func(line string) func(int) []byte {
		return func(n int) []byte { return []byte(strings.Repeat(line+"\n", n/(len(line)+1))) }
	}
	return append(rows,
		row{name: "eval/rich fields", input: numbered(`{"type":"result","is_main_result":true,`, `"%d":0`, "}\n"),
			decode: eval, most: 2 << 20},
		row{name: "eval/many results", input: lines(`{"type":"result","text":"x"}`), decode: eval, factor: 50},
		row{name: "eval/many errors", input: lines(`{"type":"error"}`), decode: eval, factor: 50},
		row{name: "eval/nested", input: deep(`{"x":[`, `1`, `]}`), decode: eval},
		row{name: "eval/endless line", input: lines(strings.Repeat("x", 1<<20)), decode: eval, most: 2 << 20},
		row{name: "code/rich fields", input: numbered(`{"type":"result","is_main_result":true,`, `"%d":0`, "}\n"),
			decode: code, most: 2 << 20},
		row{name: "code/extra forms", input: numbered(`{"type":"result","extra":{`, `"%d":0`, "}}\n"), decode: code,
			most: 2 << 20},
		row{name: "code/many values", input: repeated(`{"type":"result","data":[`, `{}`, "]}\n"), decode: code,
			most: 2 << 20},
		row{name: "code/many results", input: lines(`{"type":"result","text":"x"}`), decode: code, factor: 100},
		row{name: "code/many errors", input: lines(`{"type":"error"}`), decode: code, factor: 100},
		row{name: "code/nested", input: deep(`{"x":[`, `1`, `]}`), decode: code},
		row{name: "contexts/many", input: repeated(`[`, `{}`, `]`), decode: contexts, factor: 100},
		row{name: "eval/output", input: lines(`{"type":"stdout","text":"x"}`), decode: eval, factor: 50},
	)
}

// otherRows tests the agent's own protocol, and the protocol that controls interpreters.
func otherRows() []row {
	ping := func(t *testing.T, p []byte) { _, _ = raw(append(p, '\n')).Ping(t.Context()) }
	interrupt := func(t *testing.T, p []byte) {
		_, _ = guest("application/json", http.StatusOK, p).Interrupt(t.Context(), "")
	}
	download := func(t *testing.T, p []byte) {
		_, _ = guest("application/json", http.StatusBadRequest, p).ReadFile(t.Context(), "/a", "")
	}
	return []row{
		{name: "ping/warm", input: repeated(`{"ready":{"warm":[`, `""`, `]}}`), decode: ping, factor: 32},
		{name: "ping/nested", input: deep(`{"x":[`, `1`, `]}`), decode: ping},
		{name: "interrupt/unknown fields", input: numbered(`{`, `"x%d":{}`, `}`), decode: interrupt},
		{name: "files/a long error", input: repeated(`{"message":"`, `aaa`, `"}`), decode: download},
		{name: "forked/a long answer", decode: func(t *testing.T, p []byte) {
			_, _ = raw(append(binary.LittleEndian.AppendUint32(nil, uint32(len(p))), p...)).Forked(t.Context(),
				agentproto.Forked{Hostname: "h"})
		}, input: func(n int) []byte { return bytes.Repeat([]byte("a"), n) }},
	}
}
