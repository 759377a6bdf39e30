package mcp

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/client"
)

// api is a transport that answers requests instead of a daemon.
type api func(r *http.Request) (contentType, body string)

// RoundTrip implements http.RoundTripper.
func (a api) RoundTrip(r *http.Request) (*http.Response, error) {
	kind, body := a(r)
	return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Header: http.Header{"Content-Type": {kind}},
		Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// callOf returns a call of a tool, and the context of the call. The call sends its requests to the
// transport a.
func callOf(t *testing.T, a api) (context.Context, *call) {
	cl := client.Over(a)
	return With(t.Context(), cl), &call{Client: cl, req: &sdk.CallToolRequest{Params: &sdk.CallToolParamsRaw{}}}
}

// If a daemon makes fewer copies than requested, the tool returns an error, and this program does
// not crash.
func TestFewerCopies(t *testing.T) {
	ctx, c := callOf(t, func(*http.Request) (string, string) { return jsonType, `{"sandboxes":[]}` })
	_, err := forkAndRun(ctx, c, attemptArgs{SandboxID: "sb-1", Command: "true", Attempts: 2, Keep: "best"})
	if err == nil || !strings.Contains(err.Error(), "0 sandboxes, want 2") {
		t.Errorf("two attempts in no copy: %v", err)
	}
}

// A hostile guest may answer wait_command immediately instead of waiting. Then the tool pauses
// before it asks again.
func TestWaitingPauses(t *testing.T) {
	asked := 0
	ctx, c := callOf(t, func(r *http.Request) (string, string) {
		if p, err := io.ReadAll(r.Body); err == nil && strings.Contains(string(p), "exit_code") {
			asked++
		}
		return "application/x-ndjson", `{"stdout":"running - 1 1\n"}` + "\n" + `{"end":{"outcome":"exited"}}` + "\n"
	})
	w, err := waitCommand(ctx, c, waitArgs{SandboxID: "sb-1", PID: 7, TimeoutSecs: 1})
	if err != nil || !w.Running || asked > 3 {
		t.Errorf("in a second the guest was asked %d times: %+v, %v", asked, w, err)
	}
}
