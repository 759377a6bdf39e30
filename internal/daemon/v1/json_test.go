package v1

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/host/agentclient"
)

// A body that the document does not have is refused, and the error names the field.
func TestReadJSON(t *testing.T) {
	for _, c := range []struct {
		method, body string
		want         string // in the error; empty: none
	}{
		{"POST", ``, ""},
		{"POST", `{}`, ""},
		{"POST", `{"snapshot_tag": "a", "memory_limit_mib": null}`, ""},
		{"POST", `{"snapshot_tag": "a", "limits": {"cpus": 1}, "env": {"A": "b"}}`, ""},
		{"POST", "\t", "request body: white space"},
		{"PUT", ``, "request body: missing"},
		{"PATCH", ``, "request body: missing"},
		{"PATCH", `null`, "request body: null"},
		{"PATCH", `{"env": {"A": null}}`, ""},
		{"POST", `null`, "request body: null"},
		{"POST", `{"snapshot_tag": null}`, "snapshot_tag: null"},
		{"POST", `{"env": {"A": null}}`, "env.A: null"},
		{"POST", `{"network": {"allow": ["a", null]}}`, "network.allow[]: null"},
		{"POST", `{"limits": {"cpus": null}}`, "limits.cpus: null"},
		{"POST", `{"n": 1} {}`, "something follows"},
		{"POST", strings.Repeat("[", 100_000), "request body"},
	} {
		var req apiv1.ForkRequest
		r := httptest.NewRequest(c.method, "/", strings.NewReader(c.body))
		err := readJSON(httptest.NewRecorder(), r, &req)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s %.40s: %v", c.method, c.body, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s %.40s: %v, want %q", c.method, c.body, err, c.want)
		case c.want != "" && statusOf(err) != http.StatusBadRequest:
			t.Errorf("%s %.40s: status %d", c.method, c.body, statusOf(err))
		}
	}
}

// An answer of a guest's output is not much larger than the output, whatever the guest writes, and
// its bytes are all there.
func TestOutputsStaySmallInJSON(t *testing.T) {
	const size = 1 << 20
	for name, unit := range map[string]string{
		"text": "line\n", "colors": "\x1b[31mred\x1b[0m and plain\n", "markup": "<", "controls": "\x01", "NUL": "\x00",
		"no UTF-8": "\xff",
		"mixed":    "a\xff\x01", "half": "\x01\x02ab",
	} {
		p := []byte(strings.Repeat(unit, size/len(unit)))
		text, raw := textOf(p)
		w := httptest.NewRecorder()
		if err := writeJSON(w, 200, apiv1.ExecResult{Stdout: text, StdoutBytes: raw}); err != nil {
			t.Fatal(err)
		}
		var got apiv1.ExecResult
		if n := w.Body.Len(); n > 4*size {
			t.Errorf("%s: %d bytes in an answer of %d", name, size, n)
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || string(got.StdoutBytes) != string(p) &&
			got.Stdout != string(p) {
			t.Errorf("%s: the output is not all there: %v", name, err)
		}
		line, err := json.Marshal(dataEvent(agentclient.Stdout, p))
		if err != nil || name != "markup" && len(line) > 3*size { // its encoder leaves '<' as it is
			t.Errorf("%s: %d bytes in a line of %d: %v", name, size, len(line), err)
		}
	}
	for _, small := range []string{"a\x00b\x00", "\x1b[0m", "\x03"} {
		if text, raw := textOf([]byte(small)); text != small || raw != nil {
			t.Errorf("%q: as %q and %q", small, text, raw)
		}
	}
}
