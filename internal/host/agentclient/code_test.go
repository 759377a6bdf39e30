package agentclient

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

// interpreter returns a client of a guest that answers every call with the given lines.
func interpreter(lines ...string) *Client {
	return New(peer(func(c net.Conn) {
		req, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n%s",
			strings.Join(lines, "\n"))
	}))
}

// heard returns a sink that appends the output of code to *said.
func heard(said *[]string) CodeSink {
	note := func(format string, args ...any) error {
		*said = append(*said, fmt.Sprintf(format, args...))
		return nil
	}
	return CodeSink{
		Started:   func(n int) error { return note("started %d", n) },
		Output:    func(s Stream, text string) error { return note("stream %d %s", s, text) },
		Exception: func(e EvalError) error { return note("exception %s", e.Name) },
		Result: func(main bool, data map[string]json.RawMessage) error {
			forms, err := json.Marshal(data)
			return errors.Join(err, note("result %v %s", main, forms))
		},
	}
}

func TestRunCodeTellsAllInOrder(t *testing.T) {
	var said []string
	end, err := interpreter(`{"type":"number_of_executions","execution_count":3}`, `{"type":"keepalive"}`,
		`{"type":"stdout","text":"a"}`,
		`{"type":"unknown","text":"7"}`,
		`{"type":"result","text":"1","png":"iVA=","extra":{"application/x":[1],"text/plain":"no"},"is_main_result":true}`,
		"{\"type\":\"result\",\"text\":\"\xff\"}", `{"type":"error","name":"E"}`, `{"type":"timeout","restarted":true}`,
		`{"type":"end_of_execution"}`, `{"type":"stdout"}`).
		RunCode(t.Context(), CodeRequest{Code: "x"}, heard(&said))
	if want := (CodeEnd{ExecutionCount: 3, Raised: true, TimedOut: true, Restarted: true}); err != nil || end != want {
		t.Errorf("%+v, %v", end, err)
	}
	want := []string{"started 3", "stream 1 a", `result true {"application/x":[1],"image/png":"iVA=","text/plain":"1"}`,
		"result false {\"text/plain\":\"\uFFFD\"}", "exception E"}
	if !reflect.DeepEqual(said, want) {
		t.Errorf("%q", said)
	}
}

// If a guest sends a line that the real agent never sends, the call returns an error, and the
// daemon does not use much memory.
func TestRunCodeOfAHostileGuest(t *testing.T) {
	many := `{"type":"result"` + strings.Repeat(`,"x":0`, 1000) + `}`
	extra := `{"type":"result","extra":{"x":0` + strings.Repeat(`,"x":0`, 1000) + `}}`
	for name, line := range map[string]string{"no JSON": "{", "many forms": many, "many extra forms": extra,
		"extra that is none": `{"type":"result","extra":1}`,
		"no end":             `{"type":"stdout","text":"x"}`, "text that is none": `{"type":"stdout","text":1}`} {
		var said []string
		if end, err := interpreter(line).RunCode(t.Context(), CodeRequest{}, heard(&said)); err == nil {
			t.Errorf("%s: %+v %q", name, end, said)
		}
	}
}

// Before RunCode decodes a line, it counts the memory that decoding will take.
func TestRunCodeCountsWhatALineBecomes(t *testing.T) {
	line := `{"type":"stdout","text":"` + strings.Repeat("\xff", 1<<20) + `"}`
	c, counted := interpreter(line, `{"type":"end_of_execution"}`), 0
	c.Keep = func(n int) error { counted += n; return nil }
	var said []string
	if _, err := c.RunCode(t.Context(), CodeRequest{}, heard(&said)); err != nil {
		t.Fatal(err)
	}
	if most := len(line) + 3*1<<20; counted < most {
		t.Errorf("%d bytes counted, of %d that are kept", counted, most)
	}
	c.Keep = func(int) error { return errTooMuch }
	if _, err := c.RunCode(t.Context(), CodeRequest{}, heard(&said)); !errors.Is(err, errTooMuch) {
		t.Errorf("without memory left: %v", err)
	}
}

// Before Eval decodes a line, it counts the memory that decoding will take.
func TestEvalCountsWhatALineBecomes(t *testing.T) {
	for _, field := range []string{`"stdout","text"`, `"result","is_main_result":true,"text"`, `"error","traceback"`} {
		line := `{"type":` + field + `:"` + strings.Repeat("\xff", 1<<20) + `"}`
		c, counted := interpreter(line, `{"type":"end_of_execution"}`), 0
		c.Keep = func(n int) error { counted += n; return nil }
		if _, err := c.Eval(t.Context(), "x", EvalOptions{MaxOutput: 1000}); err != nil {
			t.Fatal(err)
		}
		if most := len(line) + 3*1<<20; counted < most {
			t.Errorf("%s: %d bytes counted, of %d that are decoded", field, counted, most)
		}
		c.Keep = func(int) error { return errTooMuch }
		if _, err := c.Eval(t.Context(), "x", EvalOptions{}); !errors.Is(err, errTooMuch) {
			t.Errorf("%s: without memory left: %v", field, err)
		}
	}
}

// The texts of an exception are cut at the same length as the text of a result.
func TestEvalCutsTheTextsOfAnException(t *testing.T) {
	long := strings.Repeat("x", 3000)
	r, err := interpreter(`{"type":"error","name":"`+long+`","value":"`+long+`","traceback":"`+long+`"}`,
		`{"type":"end_of_execution"}`).Eval(t.Context(), "x", EvalOptions{MaxOutput: 1000})
	if err != nil || r.Error == nil || !r.Truncated {
		t.Fatalf("error %v, truncated %v, %v", r.Error != nil, r.Truncated, err)
	}
	for _, text := range []string{r.Error.Name, r.Error.Value, r.Error.Traceback} {
		if !strings.HasPrefix(text, long[:1000]+"… (cut") || len(text) > 1100 {
			t.Errorf("%d bytes are kept: %.20s", len(text), text)
		}
	}
}
