package mcphttp_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/mcphttp"
)

// FuzzMessage sends arbitrary messages and headers. The handler must answer all of them, and its
// requests to the API must stay below /v1.
func FuzzMessage(f *testing.F) {
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	for _, m := range []struct{ version, method, body string }{
		{"", "", initialize}, {"2025-06-18", "", listTools}, {"2026-07-28", "server/discover", discover},
		{"", "", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`},
		{"", "", `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"spawn_sandboxes","arguments":{"snapshot_tag":"a","n":2}}}`},
		{"", "", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fork_and_run","arguments":{"sandbox_id":"a","commands":["b","c"],"keep":"all"},"_meta":{"progressToken":3}}}`},
		{"", "", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file","arguments":{"sandbox_id":"../x","path":"/a%00/../b"}}}`},
		{"", "", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"forkd://sandboxes/a/files/%2e%2e/b"}}`},
		{"2026-07-28", "subscriptions/listen", `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["forkd://sandboxes"]},` + meta + `}}`},
		{"2026-07-28", "tools/call", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get_sandbox","arguments":{"sandbox_id":"a"},` + meta + `}}`},
		{"", "", `{"jsonrpc":"2.0","id":1,"result":{}}`}, {"", "", `[]`}, {"x", "\u2028", "{"},
	} {
		f.Add(m.version, m.method, m.body)
	}
	type key struct{} // marks the context of a message of the test
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := r.Context().Value(key{}).(*testing.T)
		if !strings.HasPrefix(r.URL.Path, "/v1/") || strings.Contains(r.URL.EscapedPath(), "/../") {
			t.Errorf("a request to %s", r.URL)
		}
		if r.Header.Get("Content-Type") == "application/json" && r.ContentLength > 0 {
			var sent any
			if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
				t.Errorf("%s %s: %v", r.Method, r.URL, err)
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		// A write to memory cannot fail.
		_, _ = w.Write([]byte(`{"status":404,"code":"sandbox_not_found","detail":"none"}`))
	})
	h := mcphttp.New("test", 0, slog.New(slog.DiscardHandler))(api)
	f.Fuzz(func(t *testing.T, version, method, body string) {
		// Subscriptions continue until their client disconnects.
		ctx, cancel := context.WithTimeout(auth.With(context.WithValue(t.Context(), key{}, t),
			auth.Principal{Scope: auth.Admin}), 50*time.Millisecond)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/mcp", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		for name, value := range map[string]string{"Mcp-Protocol-Version": version, "Mcp-Method": method} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code >= http.StatusInternalServerError {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}
