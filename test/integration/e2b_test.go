package integration_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The test uses E2B's wire protocol on a VM: create, connect, a process, a file, pause, kill.
// test/compat runs the SDKs themselves.
func TestE2BWireProtocol(t *testing.T) {
	d := load(t).start(t)
	call := d.e2b(t)
	const object, stream, bytes = "application/json", "application/connect+json", "application/octet-stream"
	var box map[string]any
	if err := json.Unmarshal([]byte(call("POST", "/v2/sandboxes", object, `{"templateID":"`+tag+`"}`, 201, nil)),
		&box); err != nil {
		t.Fatal(err)
	}
	at := "/sandboxes/" + box["sandboxID"].(string)
	call("POST", "/v2"+at+"/connect", object, `{"timeout":600}`, 200, nil)
	call("POST", "/files?path=e2b", bytes, "content", 200, box)
	start := `{"process":{"cmd":"/bin/sh","args":["-c","echo $(cat e2b) $(id -un); exit 3"]}}`
	frame := string([]byte{0, 0, 0, 0, byte(len(start))}) + start
	out := call("POST", "/process.Process/Start", stream, frame, 200, box)
	if !strings.Contains(out, `"stdout":"Y29udGVudCB1c2VyCg=="`) || !strings.Contains(out, `"exitCode":3`) {
		t.Errorf("start: %q", out)
	}
	call("POST", at+"/pause", object, "", 204, nil)
	call("GET", "/health", object, "", 502, box)
	call("POST", at+"/connect", object, `{"timeout":600}`, 201, nil)
	if got := call("GET", "/files?path=e2b", object, "", 200, box); got != "content" {
		t.Errorf("after the pause: %q", got)
	}
	call("DELETE", at, object, "", 204, nil)
	call("GET", "/health", object, "", 502, box)
}

// e2b returns a function that calls E2B's API and returns the answer's body. If box is not nil, it
// uses the token of box. The function fails the test if the answer does not have the wanted status.
func (d *daemon) e2b(t *testing.T) func(method, path, kind, body string, want int, box map[string]any) string {
	socket := filepath.Join(d.run, "forkd.sock")
	clients := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}}
	return func(method, path, kind, body string, want int, box map[string]any) string {
		t.Helper()
		req, err := http.NewRequestWithContext(d.ctx(t, 5*time.Minute), method, "http://localhost"+path,
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", kind)
		if box != nil {
			req.Header.Set("E2b-Sandbox-Id", box["sandboxID"].(string))
			req.Header.Set("X-Access-Token", box["envdAccessToken"].(string))
		}
		resp, err := clients.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		p, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != want {
			t.Fatalf("%s %s: %s %s (%v), want %d", method, path, resp.Status, p, err, want)
		}
		return string(p)
	}
}
