package v1_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/audit"
)

// The audit log contains no text that is a secret or may be one. It contains the client, the
// operation and the sandbox of each request.
func TestAuditTellsNoSecrets(t *testing.T) {
	r := start(t, apirig.Options{})
	made := fork(t, r, 2)
	id, other := made[0].ID, made[1].ID
	const secret = "hush-4f9d2c"
	box := "/v1/sandboxes/" + id
	type request struct {
		method, host, path, body string
		headers                  []string
		want                     audit.Entry // only nonzero fields are compared
	}
	who := "token:default"
	requests := []request{
		{path: "/v1/snapshots?token=" + secret, want: audit.Entry{Who: who, Route: "GET /v1/snapshots", Status: 400}},
		{path: "/v1/snapshots", headers: []string{"Authorization", "Bearer " + secret + "-wrong"},
			want: audit.Entry{Status: 401}},
		{path: "/v1/snapshots", headers: []string{"Forkd-Token", secret}, want: audit.Entry{Status: 401}},
		{path: "/v1/snapshots", headers: []string{"X-Api-Key", secret, "Cookie", "s=" + secret, "Referer",
			"http://x/" + secret},
			want: audit.Entry{Who: who, Status: 200}},
		{method: "POST", path: "/v1/forks", body: `{"snapshot_tag":"a.b","env":{"KEY":"` + secret +
			`"},"network":{"mode":"allow","allow":["example.org"],` +
			`"secrets":[{"host":"example.org","header":"Authorization","value":"` + secret + `"}]}}`,
			want: audit.Entry{Route: "POST /v1/forks"}},
		{method: "POST", path: box + "/exec", body: `{"args":["true","` + secret + `"],"env":{"KEY":"` + secret + `"}}`,
			want: audit.Entry{Sandbox: id, Route: "POST /v1/sandboxes/{id}/exec", Status: 200}},
		{method: "POST", path: box + "/eval", body: `{"code":"'` + secret + `'"}`,
			want: audit.Entry{Sandbox: id, Status: 200}},
		{method: "POST", path: box + "/promote", body: `{"from":"` + other + `"}`,
			want: audit.Entry{Sandbox: id, From: other, Status: 200}},
		{method: "POST", path: box + "/promote", body: `{"from":"` + secret + `"}`,
			want: audit.Entry{Sandbox: id, Status: 404}},
		{method: "POST", path: "/v1/diff", body: `{"from":"` + other + `","to":"` + id + `"}`,
			want: audit.Entry{Sandbox: id, From: other, Status: 200}},
		{method: "POST", path: "/v1/diff", body: `{"from":"` + secret + `","to":"` + id + `"}`,
			want: audit.Entry{Status: 404}},
		{method: "POST", path: "/v1/export", body: `{"from":"` + other + `","to":"` + id + `"}`,
			want: audit.Entry{Sandbox: id, From: other, Status: 200}},
		{method: "POST", path: "/v1/export", body: `{"from":"` + secret + `","to":"` + id + `"}`,
			want: audit.Entry{Status: 404}},
		{method: "PUT", path: box + "/files?path=" + t.TempDir() + "/" + secret, body: secret,
			headers: []string{"Content-Type", "application/octet-stream"}, want: audit.Entry{Sandbox: id}},
		{path: box + "/proxy/1/" + secret + "?" + secret, want: audit.Entry{Sandbox: id, Path: box + "/proxy/1/", Who: who}},
		{path: box + "/proxy/1/" + secret, headers: []string{"Authorization", "Bearer " + secret},
			want: audit.Entry{Sandbox: id, Path: box + "/proxy/1/", Status: 401}},
		{host: "1-" + id + "." + apirig.Domain, path: "/" + secret, want: audit.Entry{Sandbox: id, Host: "1-" + id, Path: "/",
			Who: who}},
		{host: "1-" + id + "-" + strings.Repeat("a", 27) + "." + apirig.Domain, path: "/" + secret,
			want: audit.Entry{Status: 403, Path: "/"}},
		{host: "nonsense-" + secret + "." + apirig.Domain, path: "/" + secret, want: audit.Entry{Status: 404, Path: "/"}},
	}
	for i, c := range requests {
		req, err := http.NewRequest(c.method, r.URL+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = c.host
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(audit.RequestIDHeader, strconv.Itoa(i))
		for i := 0; i < len(c.headers); i += 2 {
			req.Header.Set(c.headers[i], c.headers[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if id := resp.Header.Get(audit.RequestIDHeader); id != strconv.Itoa(i) {
			t.Errorf("%s: answered with the request id %q", c.path, id)
		}
	}
	lines := auditLines(t, r.AuditLog, len(requests))
	for i, c := range requests {
		line, ok := lines[strconv.Itoa(i)]
		if !ok {
			t.Errorf("%s: no line", c.path)
			continue
		}
		var e audit.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, secret) || strings.Contains(line, token) {
			t.Errorf("a secret is in the audit log: %s", line)
		}
		w := c.want
		for _, f := range []struct{ want, got string }{
			{w.Who, e.Who}, {w.Route, e.Route}, {w.Sandbox, e.Sandbox}, {w.Path, e.Path}, {w.Host, e.Host},
			{w.From, e.From},
		} {
			if f.want != "" && f.want != f.got {
				t.Errorf("%s: %s; want %q", c.path, line, f.want)
			}
		}
		if w.Status != 0 && w.Status != e.Status || w.Status == 401 && e.Who != "" || e.Remote == "" {
			t.Errorf("%s: %s", c.path, line)
		}
	}
}

// auditLines waits for n lines with short request ids, and returns the lines by id. A line may be
// written after the client has received the answer.
func auditLines(t *testing.T, path string, n int) map[string]string {
	t.Helper()
	lines := map[string]string{}
	for deadline := time.Now().Add(30 * time.Second); len(lines) < n &&
		time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		p, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(p)) {
			var e audit.Entry
			if err := json.Unmarshal([]byte(line), &e); err == nil && len(e.RequestID) < 4 {
				lines[e.RequestID] = line
			}
		}
	}
	return lines
}
