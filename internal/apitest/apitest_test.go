package apitest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A value of the type reports collects the reports of Checked.
type reports struct {
	testing.TB
	list []string
}

func (r *reports) Errorf(format string, args ...any) {
	r.list = append(r.list, fmt.Sprintf(format, args...))
}

func TestChecked(t *testing.T) {
	const stats = `"vmm_pid":1,"pss_kib":1,"private_kib":1,"guest_dirty_kib":1,"guest_pss_kib":1,"vmm_private_kib":1,"kvm_exits":1`
	const problem = `{"error":"no","type":"x:y","title":"t","status":404,"detail":"no","code":"sandbox_not_found","fix":"f"}`
	for _, c := range []struct {
		name, method, path, request string
		status                      int
		answer, want                string // text that the report must contain; empty: there must be no report
	}{
		{"as documented", "GET", "/v1/sandboxes/x/stats", "", 200, `{` + stats + `,"paused":false}`, ""},
		{"a field too many", "GET", "/v1/sandboxes/x/stats", "", 200, `{` + stats + `,"paused":false,"more":1}`, "more"},
		{"a field too few", "GET", "/v1/sandboxes/x/stats", "", 200, `{` + stats + `}`, "paused"},
		{"another type", "GET", "/v1/sandboxes/x/stats", "", 200, `{` + stats + `,"paused":"no"}`, "paused"},
		{"a documented error", "GET", "/v1/sandboxes/x/stats", "", 404, problem, ""},
		{"an error of another form", "GET", "/v1/sandboxes/x/stats", "", 404, `{"message":"no"}`, "error"},
		{"another status", "GET", "/v1/sandboxes/x/stats", "", 418, problem, "418"},
		{"another path", "GET", "/v1/secrets", "", 200, `{}`, "no matching operation"},
		{"another path, refused", "GET", "/v1/secrets", "", 404, problem, ""},
		{"a wrong request that is taken", "POST", "/v1/sandboxes/x/rollback", `{"where":"a"}`, 200, `{}`, "where"},
		{"a wrong request that is refused", "POST", "/v1/sandboxes/x/rollback", `{"where":"a"}`, 400, problem, ""},
		{"a sum with a field too many", "GET", "/v1/snapshots/x/info", "", 200, `{"more":1}`, "more"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &reports{TB: t}
			h := Checked(r, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				req.Body.Read(make([]byte, 1000))
				w.Header().Set("Content-Type", "application/json")
				if c.status >= 400 {
					w.Header().Set("Content-Type", "application/problem+json")
				}
				w.WriteHeader(c.status)
				w.Write([]byte(c.answer))
			}))
			req := httptest.NewRequest(c.method, c.path, strings.NewReader(c.request))
			if c.request != "" {
				req.Header.Set("Content-Type", "application/json")
			}
			h.ServeHTTP(httptest.NewRecorder(), req)
			if all := strings.Join(r.list, "\n"); (c.want == "") != (len(r.list) == 0) || !strings.Contains(all, c.want) {
				t.Errorf("reported %q, want %q", all, c.want)
			}
		})
	}
}
