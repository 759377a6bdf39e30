package mcphttp_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/mcphttp"
)

// The idle stream of a long call or of a subscription has keepalive comments, which clients skip.
func TestSilentStreamsLive(t *testing.T) {
	rig := startWith(t, face.Limits{Keepalive: 20 * time.Millisecond})
	f, err := rig.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	const meta = `{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	call := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"exec_command","arguments":{"sandbox_id":"%s",
"args":["sleep","1"]},"_meta":%s}}`, id, meta)
	header := map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call",
		"Mcp-Name": "exec_command"}
	resp, got := post(t, rig.URL, header, call)
	before, _, answered := strings.Cut(got, "data: ")
	if resp.StatusCode != http.StatusOK || !answered || !strings.HasPrefix(before, ": keepalive\n\n: keepalive\n\n") ||
		!strings.HasSuffix(before, "\n\n") && !strings.HasSuffix(before, "event: message\n") {
		t.Errorf("%d %s", resp.StatusCode, got)
	}
	if resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("headers: %v", resp.Header)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	listen := `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["forkd://sandboxes"]},"_meta":` +
		meta + `}}`
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, rig.URL+"/mcp", strings.NewReader(listen))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Authorization": "Bearer " + apirig.Token,
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen"} {
		r.Header.Set(name, value)
	}
	stream, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	seen := 0
	for lines := bufio.NewScanner(stream.Body); seen < 3 && lines.Scan(); {
		if lines.Text() == ": keepalive" {
			seen++
		}
	}
	if seen < 3 {
		t.Errorf("%s: %d comments", stream.Status, seen)
	}

	s := dial(t, rig.URL, apirig.Token, nil, nil)
	slow, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "exec_command",
		Arguments: map[string]any{"sandbox_id": id, "args": []string{"sh", "-c", "sleep 0.3; echo done"}}})
	if err != nil || slow.IsError || !strings.Contains(slow.Content[0].(*sdk.TextContent).Text, "done") {
		t.Errorf("%+v, %v", slow, err)
	}
}

// severed is a connection whose client has disappeared silently.
type severed struct{ *httptest.ResponseRecorder }

// Write implements http.ResponseWriter.
func (severed) Write([]byte) (int, error) { return 0, errors.New("connection timed out") }

// A call ends when its client no longer receives keepalive comments.
func TestACallEndsWithItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		api := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		h := mcphttp.New("test", 0, slog.New(slog.DiscardHandler))(api)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mcp",
			strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_sandboxes","arguments":{}}}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		h.ServeHTTP(severed{httptest.NewRecorder()}, r)
		if took := time.Since(begun); took != 15*time.Second {
			t.Errorf("it ended after %s", took)
		}
	})
}
