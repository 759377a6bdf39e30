package face

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apiv1 "github.com/forkd/forkd/api/v1"
)

// A body that does not match the API's document is refused, and the error names the field.
func TestReadJSON(t *testing.T) {
	for _, c := range []struct {
		method, body string
		want         string // part of the error; empty: no error
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
		err := ReadJSON(httptest.NewRecorder(), r, &req)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s %.40s: %v", c.method, c.body, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s %.40s: %v, want %q", c.method, c.body, err, c.want)
		case c.want != "" && StatusOf(err) != http.StatusBadRequest:
			t.Errorf("%s %.40s: status %d", c.method, c.body, StatusOf(err))
		}
	}
}
