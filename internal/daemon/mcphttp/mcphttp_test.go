package mcphttp_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/guest/agent"
)

func TestMain(m *testing.M) { apirig.Main(m, agent.Main) }

func start(t *testing.T, tokens ...auth.Token) *apirig.Rig {
	t.Helper()
	return startWith(t, face.Limits{}, tokens...)
}

func startWith(t *testing.T, limits face.Limits, tokens ...auth.Token) *apirig.Rig {
	t.Helper()
	rig := apirig.Start(t, apirig.Options{Tokens: tokens, Limits: limits, Agent: apirig.SelfAgent})
	if _, err := rig.Bake(t.Context(), rig.Parent); err != nil {
		t.Fatal(err)
	}
	return rig
}

// bearer adds a token to every request.
type bearer struct {
	token string
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.token != "" {
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.next.RoundTrip(r)
}

// dial connects a client of the newest protocol to /mcp.
func dial(t *testing.T, url, token string, o *sdk.ClientOptions, over http.RoundTripper) *sdk.ClientSession {
	t.Helper()
	if over == nil {
		over = http.DefaultTransport
	}
	cl := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o)
	session, err := cl.Connect(t.Context(), &sdk.StreamableClientTransport{
		Endpoint: url + "/mcp", HTTPClient: &http.Client{Transport: bearer{token, over}}, DisableStandaloneSSE: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return session
}

// call calls a tool and returns the text for the model, and whether it is an error.
func call(t *testing.T, s *sdk.ClientSession, name string, in map[string]any) (string, bool) {
	t.Helper()
	r, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: in})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return r.Content[0].(*sdk.TextContent).Text, r.IsError
}

func names(t *testing.T, s *sdk.ClientSession) (list []string) {
	t.Helper()
	r, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range r.Tools {
		list = append(list, tool.Name)
	}
	return list
}

// A client of the newest protocol forks a sandbox and runs code, and receives progress reports.
func TestNewestProtocol(t *testing.T) {
	rig := start(t)
	progress := make(chan string, 10)
	s := dial(
		t,
		rig.URL,
		apirig.Token,
		&sdk.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
			progress <- r.Params.Message
		}},
		nil,
	)
	if v := s.InitializeResult().ProtocolVersion; v != "2026-07-28" {
		t.Errorf("version %s", v)
	}
	f, err := rig.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	params := &sdk.CallToolParams{
		Name:      "fork_and_run",
		Arguments: map[string]any{"sandbox_id": f.Sandboxes[0].ID, "command": "echo $FORKD_ATTEMPT", "attempts": 2},
	}
	params.SetProgressToken("p")
	r, err := s.CallTool(t.Context(), params)
	if err != nil || r.IsError {
		t.Fatalf("%+v, %v", r, err)
	}
	for range 3 {
		select {
		case <-progress:
		case <-time.After(time.Minute):
			t.Fatal("no progress")
		}
	}
}

// A client sees the tools that its scope permits. If it calls another tool, the API refuses the
// request. A client with a label prefix does not learn of sandboxes outside its prefix.
func TestTokensAreThoseOfTheAPI(t *testing.T) {
	rig := start(t, auth.Token{Name: "reader", Scope: auth.Read}, auth.Token{Name: "runner", Scope: auth.Run},
		auth.Token{Name: "tenant", Scope: auth.Run, Prefix: "tenant/"})
	reader, runner := dial(t, rig.URL, rig.Tokens["reader"], nil, nil), dial(t, rig.URL, rig.Tokens["runner"], nil, nil)
	if got := names(t, reader); !slices.Equal(got, []string{"get_sandbox", "list_sandboxes", "list_snapshots", "tree"}) {
		t.Errorf("read sees %v", got)
	}
	if got := names(t, runner); slices.Contains(got, "delete_snapshot") || !slices.Contains(got, "fork_and_run") {
		t.Errorf("run sees %v", got)
	}
	if _, err := reader.CallTool(t.Context(), &sdk.CallToolParams{Name: "spawn_sandboxes",
		Arguments: map[string]any{"snapshot_tag": "a.b"}}); err == nil {
		t.Error("read may spawn")
	}
	if text, failed := call(t, runner, "spawn_sandboxes", map[string]any{"snapshot_tag": "a.b"}); failed {
		t.Fatal(text)
	}
	others, err := rig.Sandboxes(t.Context())
	if err != nil || len(others) != 1 {
		t.Fatal(others, err)
	}
	tenant := dial(t, rig.URL, rig.Tokens["tenant"], nil, nil)
	if text, failed := call(t, tenant, "get_sandbox", map[string]any{"sandbox_id": others[0].ID}); !failed ||
		!strings.Contains(text, "sandbox_not_found") {
		t.Errorf("the tenant sees %s", text)
	}
	if text, _ := call(t, tenant, "list_sandboxes", nil); strings.Contains(text, others[0].ID) {
		t.Errorf("the tenant lists %s", text)
	}
	if _, err := tenant.ReadResource(t.Context(),
		&sdk.ReadResourceParams{URI: "forkd://sandboxes/" + others[0].ID}); err == nil {
		t.Error("the tenant reads the resource of another's sandbox")
	}
	text, failed := call(t, tenant, "spawn_sandboxes", map[string]any{"snapshot_tag": "a.b"})
	if failed || !strings.Contains(text, `"tenant/owner":"token:tenant"`) {
		t.Errorf("the tenant's own sandbox: %s", text)
	}
	if _, own, ok := strings.Cut(text, `"id":"`); ok {
		own, _, _ = strings.Cut(own, `"`)
		if text, failed := call(t, tenant, "fork_and_run", map[string]any{"sandbox_id": own, "command": "true"}); failed ||
			!strings.Contains(text, "Winner: attempt 1") {
			t.Errorf("the tenant's attempts: %s", text)
		}
	}
	checkAudit(t, rig)
}

// checkAudit checks that a call of a tool has two audit lines with the same id: one for the
// message, and one for its API request.
func checkAudit(t *testing.T, rig *apirig.Rig) {
	t.Helper()
	f, err := os.Open(rig.AuditLog)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	byID := map[string][]audit.Entry{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var e audit.Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		byID[e.RequestID] = append(byID[e.RequestID], e)
	}
	for _, list := range byID { // the last line may not have been written yet
		if i := slices.IndexFunc(list, func(e audit.Entry) bool {
			return e.Route == "POST /v1/sandboxes" ||
				e.Route == "POST /v1/forks"
		}); i >= 0 {
			made := list[i]
			if made.Who == "token:runner" && len(list) == 2 && list[1-i].Route == "POST /mcp" && list[1-i].Who == made.Who &&
				list[1-i].Remote == made.Remote {
				return
			}
		}
	}
	t.Errorf("no line of a message beside that of its call: %+v", byID)
}

// post sends one message unchanged.
func post(t *testing.T, url string, header map[string]string, body string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/mcp", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Authorization": "Bearer " + apirig.Token,
		"Content-Type": "application/json",
		"Accept":       "application/json, text/event-stream"} {
		r.Header.Set(name, value)
	}
	for name, value := range header {
		r.Header.Set(name, value)
		if name == "Host" {
			r.Host = value
		}
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(p)
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

const discover = `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",
"io.modelcontextprotocol/clientCapabilities":{}}}}`

var newest = map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "server/discover"}

const listTools = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`

// Messages that no client of the protocol would send, and messages that a browser sends for a web
// page, are refused.
func TestWrongMessages(t *testing.T) {
	rig := start(t)
	for name, test := range map[string]struct {
		header map[string]string
		body   string
		status int
		want   string
	}{
		"as it should be":       {nil, listTools, 200, "fork_and_run"},
		"an older protocol":     {map[string]string{"Mcp-Protocol-Version": "2025-06-18"}, listTools, 200, "fork_and_run"},
		"an unknown protocol":   {map[string]string{"Mcp-Protocol-Version": "2020-01-01"}, listTools, 400, "2025-11-25"},
		"no token":              {map[string]string{"Authorization": ""}, listTools, 401, "unauthenticated"},
		"a wrong token":         {map[string]string{"Authorization": "Bearer x"}, listTools, 401, "unauthenticated"},
		"from a page":           {map[string]string{"Origin": "https://evil.example"}, listTools, 403, "cross-origin"},
		"from a page's iframe":  {map[string]string{"Sec-Fetch-Site": "cross-site"}, listTools, 403, "cross-origin"},
		"not JSON":              {nil, "{", 400, ""},
		"nothing":               {nil, "", 400, ""},
		"a batch":               {nil, " [" + listTools + "," + listTools + "]", 400, "it is an array"},
		"another type":          {map[string]string{"Content-Type": "text/plain"}, listTools, 415, ""},
		"no stream is accepted": {map[string]string{"Accept": "application/json"}, listTools, 400, "text/event-stream"},
		"too long": {nil, `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + strings.Repeat("x",
			5<<20) + `"}}`, 413, "body_too_large"},
		"an unknown method":     {nil, `{"jsonrpc":"2.0","id":1,"method":"sampling/do"}`, 400, "unsupported"},
		"an older subscription": {nil, `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"forkd://snapshots"}}`, 200, "-32601"},
		"an older beginning":    {nil, initialize, 200, `"resources":{}`},
		"a newer beginning":     {newest, discover, 200, `"resources":{"subscribe":true}`},
		"an unknown tool":       {nil, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"rm"}}`, 200, "unknown tool"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, got := post(t, rig.URL, test.header, test.body)
			if resp.StatusCode != test.status || !strings.Contains(got, test.want) {
				t.Errorf("%d %.300s; want %d with %q", resp.StatusCode, got, test.status, test.want)
			}
		})
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, rig.URL+"/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+apirig.Token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != "POST" {
		t.Errorf("GET: %d, allowed %s", resp.StatusCode, resp.Header.Get("Allow"))
	}
}

// The owner of the unix socket needs no token, and tools call the API as that user.
func TestUnixSocket(t *testing.T) {
	rig := start(t)
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: rig.Server.Config.Handler, ConnContext: auth.WithPeer, ReadHeaderTimeout: time.Minute}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	s := dial(
		t,
		"http://forkd",
		"",
		nil,
		&http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}},
	)
	if text, failed := call(t, s, "spawn_sandboxes", map[string]any{"snapshot_tag": "a.b"}); failed {
		t.Fatal(text)
	}
	want := []byte(fmt.Sprintf(`"remote":"unix:%d"`, os.Getpid()))
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) { // the daemon writes the audit line after the answer
		p, err := os.ReadFile(rig.AuditLog)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Count(p, want) >= 3 && bytes.Contains(p, []byte(`"who":"uid:`)) {
			return
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("fewer than 3 lines with %s:\n%s", want, p)
		}
	}
}

// The answer to a subscription of the newest protocol is a stream that lasts until the client
// leaves.
func TestListen(t *testing.T) {
	rig := start(t)
	f, err := rig.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	message := fmt.Sprintf(
		`{"jsonrpc":"2.0","id":7,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["forkd://sandboxes/%s"]},
"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"}}}}`,
		id,
	)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, rig.URL+"/mcp", strings.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Authorization": "Bearer " + apirig.Token,
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen"} {
		r.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	next := func(want string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), want) {
				return
			}
		}
		t.Fatalf("%d: the stream ended before %s: %v", resp.StatusCode, want, lines.Err())
	}
	next("notifications/subscriptions/acknowledged")
	if _, err := rig.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	next("notifications/resources/updated")
}

// A call ends when its client disconnects, in every version of the protocol.
func TestLeaving(t *testing.T) {
	rig := start(t)
	f, err := rig.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	for version, meta := range map[string]string{"2025-06-18": `{}`,
		"2026-07-28": `{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`} {
		ctx, cancel := context.WithCancel(t.Context())
		message := fmt.Sprintf(
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"exec_command","arguments":{"sandbox_id":"%s","args":["sleep","1000"],"timeout_secs":900},"_meta":%s}}`,
			id,
			meta,
		)
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, rig.URL+"/mcp", strings.NewReader(message))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"Authorization": "Bearer " + apirig.Token,
			"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
			"Mcp-Protocol-Version": version, "Mcp-Method": "tools/call", "Mcp-Name": "exec_command"} {
			r.Header.Set(name, value)
		}
		left := make(chan error, 1)
		go func() {
			resp, err := http.DefaultClient.Do(r)
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			left <- err
		}()
		running := func(want int) {
			t.Helper()
			for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
				list, err := rig.Processes(t.Context(), id)
				if err != nil {
					t.Fatal(err)
				}
				if len(list) == want {
					return
				}
				if time.Since(begun) > time.Minute {
					t.Fatalf("%s: %d processes, want %d: %+v", version, len(list), want, list)
				}
			}
		}
		running(1)
		cancel()
		if err := <-left; err == nil {
			t.Errorf("%s: answered", version)
		}
		running(0)
	}
}

// Concurrent messages of several clients are answered by one server, and do not affect each other.
func TestClientsAtOnce(t *testing.T) {
	rig := start(
		t,
		auth.Token{Name: "a", Scope: auth.Run, Prefix: "a/"},
		auth.Token{Name: "b", Scope: auth.Run, Prefix: "b/"},
	)
	var wait sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		s := dial(t, rig.URL, rig.Tokens[name], nil, nil)
		if text, failed := call(t, s, "spawn_sandboxes", map[string]any{"snapshot_tag": "a.b"}); failed {
			t.Fatal(text)
		}
		for range 20 {
			wait.Go(func() {
				r, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "list_sandboxes"})
				if err != nil {
					t.Error(err)
					return
				}
				text := r.Content[0].(*sdk.TextContent).Text
				if strings.Count(text, `"id":`) != 1 || !strings.Contains(text, fmt.Sprintf(`"%s/owner":"token:%s"`, name, name)) {
					t.Errorf("%s sees %s", name, text)
				}
			})
		}
	}
	wait.Wait()
}
