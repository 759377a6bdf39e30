package v1

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/agentclient"
)

// An answer with the output of a guest is complete and not much longer than the output, whatever
// bytes the guest writes.
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
		r := httptest.NewRequest("POST", "/", nil)
		if err := face.WriteJSON(w, r, 200, apiv1.ExecResult{Stdout: text, StdoutBytes: raw}); err != nil {
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
		if err != nil || name != "markup" && len(line) > 3*size { // the encoder of this answer leaves '<' as one byte
			t.Errorf("%s: %d bytes in a line of %d: %v", name, size, len(line), err)
		}
	}
	for _, small := range []string{"a\x00b\x00", "\x1b[0m", "\x03"} {
		if text, raw := textOf([]byte(small)); text != small || raw != nil {
			t.Errorf("%q: as %q and %q", small, text, raw)
		}
	}
}
