package e2b_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/guest/agent"
)

func TestMain(m *testing.M) { apirig.Main(m, agent.Main) }

// rig is an API with a template.
type rig struct {
	*apirig.Rig
	t   *testing.T
	key header // headers sent by call
}

func start(t *testing.T) *rig {
	t.Helper()
	return startWith(t, apirig.Options{})
}

func startWith(t *testing.T, o apirig.Options) *rig {
	t.Helper()
	o.Agent = apirig.SelfAgent
	r := &rig{t: t, key: apiKey, Rig: apirig.Start(t, o)}
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	return r
}

// header holds headers of a request. "Host" is the request's host.
type header map[string]string

var apiKey = header{"X-API-Key": "e2b_" + apirig.Token}

// send makes a request and returns the answer with its body.
func (r *rig) send(method, path string, h header, body string) (*http.Response, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for name, value := range h {
		if name == "Host" {
			req.Host = value
		}
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp, string(p)
}

// call sends a request to the control plane. If v is not nil, it decodes the answer into v.
func (r *rig) call(method, path, body string, want int, v any) *http.Response {
	r.t.Helper()
	resp, text := r.send(method, path, r.key, body)
	if resp.StatusCode != want {
		r.t.Fatalf("%s %s: %s %s, want %d", method, path, resp.Status, text, want)
	}
	if want >= 400 {
		var e struct {
			Code    int
			Message string
		}
		if json.Unmarshal([]byte(text), &e) != nil || e.Code != want || e.Message == "" ||
			resp.Header.Get("Content-Type") != "application/json" {
			r.t.Errorf("%s %s: the error %q is not E2B's", method, path, text)
		}
	}
	if v != nil {
		if err := json.Unmarshal([]byte(text), v); err != nil {
			r.t.Fatalf("%s %s: %q: %v", method, path, text, err)
		}
	}
	return resp
}

// box is the description of a new sandbox in the answer to its creator.
type box struct {
	ID      string `json:"sandboxID"`
	Access  string `json:"envdAccessToken"`
	Traffic string `json:"trafficAccessToken"`
	Domain  string `json:"domain"`
	Envd    string `json:"envdVersion"`
	State   string `json:"state"`
	EndAt   string `json:"endAt"`
}

func (r *rig) create(body string) (b box) {
	r.t.Helper()
	r.call("POST", "/v2/sandboxes", body, 201, &b)
	return b
}

func (b box) header() header {
	return header{"E2b-Sandbox-Id": b.ID, "E2b-Sandbox-Port": "49983", "X-Access-Token": b.Access}
}

func (h header) with(name, value string) header {
	out := header{}
	for k, v := range h {
		out[k] = v
	}
	out[name] = value
	return out
}

const simple = `{"templateID":"a.b"}`

func TestAPIKey(t *testing.T) {
	r := start(t)
	for _, key := range []string{"", "e2b_", "e2b_" + apirig.Token[1:], "e2b_e2b_" + apirig.Token} {
		resp, body := r.send("GET", "/v2/sandboxes", header{"X-API-Key": key}, "")
		if resp.StatusCode != 401 || !strings.HasPrefix(body, `{"code":401,"message":`) {
			t.Errorf("%q: %s %s", key, resp.Status, body)
		}
	}
	for _, h := range []header{apiKey, {"X-API-Key": apirig.Token}, {"Authorization": "Bearer " + apirig.Token}} {
		if resp, body := r.send("GET", "/v2/sandboxes", h, ""); resp.StatusCode != 200 || strings.TrimSpace(body) != "[]" {
			t.Errorf("%v: %s %s", h, resp.Status, body)
		}
	}
	if resp, _ := r.send("GET", "/v2/sandboxes", apiKey.with("Origin", "https://evil.test"), ""); resp.StatusCode != 403 {
		t.Errorf("another origin: %s", resp.Status)
	}
	if resp, body := r.send("GET", "/v1/sandboxes", apiKey, ""); resp.StatusCode != 401 ||
		strings.Contains(body, `"code":401`) {
		t.Errorf("/v1 with an API key: %s %s", resp.Status, body)
	}
}

func TestCreateUseAndKill(t *testing.T) {
	r := start(t)
	var old box
	r.call("POST", "/sandboxes", `{"templateID":"a.b:default","secure":true,"timeout":60}`, 201, &old)
	b := r.create(`{"templateID":"a.b","metadata":{"k":"v"},"newField":1}`)
	if b.ID == old.ID || b.Access == old.Access || b.Access == "" || b.Traffic == b.Access || b.Envd != "0.6.13" {
		t.Errorf("%+v, %+v", old, b)
	}
	r.call("POST", "/v2/sandboxes", `{"templateID":"none"}`, 404, nil)
	r.call("POST", "/v2/sandboxes", `{"templateID":"../x"}`, 400, nil)
	r.call("POST", "/v2/sandboxes", `{"templateID":"a.b","timeout":-1}`, 400, nil)
	r.call("POST", "/v2/sandboxes", `{`, 400, nil)
	r.call("POST", "/v2/sandboxes", `{"templateID":"a.b","metadata":{"k":"`+strings.Repeat("x", 70_000)+`"}}`, 400, nil)
	r.call("GET", "/secrets", "", 501, nil)

	frame := func(msg string) string {
		return string(append([]byte{0, 0, 0, 0, byte(len(msg))}, msg...))
	}
	stream := b.header().with("Content-Type", "application/connect+json").with("Connect-Protocol-Version", "1")
	resp, out := r.send("POST", "/process.Process/Start", stream,
		frame(`{"process":{"cmd":"/bin/sh","args":["-c","echo out; exit 3"]}}`))
	if resp.StatusCode != 200 || !strings.Contains(out, `"stdout":"b3V0Cg=="`) || !strings.Contains(out, `"exitCode":3`) {
		t.Errorf("start: %s %q", resp.Status, out)
	}
	path := filepath.Join(t.TempDir(), "file")
	raw := b.header().with("Content-Type", "application/octet-stream")
	if resp, out := r.send("POST", "/files?path="+url.QueryEscape(path), raw, "content"); resp.StatusCode != 200 {
		t.Errorf("write: %s %s", resp.Status, out)
	}
	if resp, out := r.send("GET", "/files?path="+url.QueryEscape(path), b.header(), ""); resp.StatusCode != 200 ||
		out != "content" {
		t.Errorf("read: %s %s", resp.Status, out)
	}
	for _, h := range []header{b.header().with("X-Access-Token", old.Access), b.header().with("X-Access-Token", ""),
		b.header().with("X-Access-Token", b.Traffic)} {
		for _, path := range []string{"/process.Process/List", "/files?path=/etc/passwd", "/envs", "//envs"} {
			if resp, out := r.send("POST", path, h, "{}"); resp.StatusCode != 401 {
				t.Errorf("%s with a wrong token: %s %s", path, resp.Status, out)
			}
		}
	}
	for _, path := range []string{"/init", "//init", "/x/../init", "/%69nit"} { // /init would change the agent's token
		if resp, _ := r.send("POST", path, b.header(), "{}"); resp.StatusCode != 404 {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	if resp, out := r.send("POST", "/execute", b.header().with("E2b-Sandbox-Port", "49999"),
		`{"code":"print(6*7)"}`); resp.StatusCode != 200 || !strings.Contains(out, `42\n`) {
		t.Errorf("execute: %s %s", resp.Status, out)
	}
	var metrics []map[string]any
	if r.call("GET", "/sandboxes/"+b.ID+"/metrics", "", 200, &metrics); len(metrics) != 1 || metrics[0]["memTotal"] == 0 {
		t.Errorf("metrics: %v", metrics)
	}
	r.call("DELETE", "/sandboxes/"+b.ID, "", 204, nil)
	r.call("DELETE", "/sandboxes/"+b.ID, "", 404, nil)
	r.call("GET", "/sandboxes/"+b.ID, "", 404, nil)
	if resp, out := r.send("GET", "/health", b.header(), ""); resp.StatusCode != 502 ||
		!strings.Contains(out, `"sandboxId":"`+b.ID+`"`) {
		t.Errorf("health of a killed sandbox: %s %s", resp.Status, out)
	}
	if resp, _ := r.send("GET", "/health", old.header(), ""); resp.StatusCode != 204 {
		t.Errorf("health: %s", resp.Status)
	}
}

func TestList(t *testing.T) {
	r := start(t)
	var ids []string
	for i := range 3 {
		ids = append(ids, r.create(fmt.Sprintf(`{"templateID":"a.b","metadata":{"n":"%d","a b":"c&d=é"}}`, i)).ID)
	}
	slices.Reverse(ids)
	var got []string
	for token := ""; ; {
		var page []box
		resp := r.call("GET", "/v2/sandboxes?limit=1&nextToken="+token, "", 200, &page)
		if len(page) != 1 {
			t.Fatalf("a page of %d", len(page))
		}
		got = append(got, page[0].ID)
		if token = resp.Header.Get("X-Next-Token"); token == "" {
			break
		}
	}
	if !slices.Equal(got, ids) {
		t.Errorf("pages: %v, want %v", got, ids)
	}
	// The SDKs encode metadata three times: each key and value, then the form, then the query.
	pair := url.QueryEscape("a b") + "=" + url.QueryEscape("c&d=é")
	filter := url.QueryEscape(url.QueryEscape(strings.ReplaceAll(pair, "+", "%20") + "&n=1"))
	var page []box
	if r.call("GET", "/v2/sandboxes?state=running,paused&metadata="+filter, "", 200, &page); len(page) != 1 ||
		page[0].ID != ids[1] {
		t.Errorf("by metadata: %+v", page)
	}
	if r.call("GET", "/v2/sandboxes?state=paused", "", 200, &page); len(page) != 0 {
		t.Errorf("paused: %+v", page)
	}
	for _, q := range []string{"state=odd", "limit=0", "limit=x", "nextToken=!", "order=up", "startedAfter=now",
		"metadata=%25zz"} {
		r.call("GET", "/v2/sandboxes?"+q, "", 400, nil)
	}
}

func TestTimeoutPauseAndFork(t *testing.T) {
	r := start(t)
	b := r.create(`{"templateID":"a.b","timeout":300}`)
	at := "/sandboxes/" + b.ID
	end := func() string {
		var i box
		r.call("GET", at, "", 200, &i)
		return i.EndAt
	}
	first := end()
	r.call("POST", "/v2"+at+"/connect", `{"timeout":10}`, 200, nil)
	if end() != first {
		t.Error("connect has shortened the time")
	}
	r.call("POST", at+"/timeout", `{"timeout":10000}`, 204, nil)
	if end() <= first {
		t.Error("the time was not set")
	}
	r.call("POST", at+"/pause", `{"requireHealthyGuest":true}`, 204, nil)
	r.call("POST", at+"/pause", `{}`, 409, nil)
	r.call("POST", at+"/timeout", `{"timeout":10}`, 404, nil)
	if resp, _ := r.send("GET", "/health", b.header(), ""); resp.StatusCode != 502 {
		t.Errorf("health of a paused sandbox: %s", resp.Status)
	}
	var forks []struct{ Sandbox box }
	if r.call("POST", at+"/fork", `{"count":2,"timeout":60}`, 201, &forks); len(forks) != 2 ||
		forks[0].Sandbox.ID == forks[1].Sandbox.ID {
		t.Errorf("forks of a paused sandbox: %+v", forks)
	}
	var i box
	if r.call("GET", at, "", 200, &i); i.State != "paused" {
		t.Errorf("it is %s after its fork", i.State)
	}
	// On these routes, SDKs of 2025 also send the headers that are meant for services in sandboxes.
	for _, h := range []header{{"E2b-Sandbox-Id": b.ID}, {"E2b-Sandbox-Id": b.ID, "E2b-Sandbox-Port": "49983"}} {
		if resp, out := r.send("GET", at, h.with("X-API-Key", apiKey["X-API-Key"]), ""); resp.StatusCode != 200 {
			t.Errorf("with %v: %s %s", h, resp.Status, out)
		}
	}
	var again box
	if r.call("POST", at+"/connect", `{"timeout":60}`, 201, &again); again.Access != b.Access {
		t.Error("another token after the pause")
	}
	if resp, _ := r.send("GET", "/health", b.header(), ""); resp.StatusCode != 204 {
		t.Errorf("health: %s", resp.Status)
	}
	r.call("POST", "/v2"+at+"/fork", `{}`, 201, &forks)
	for _, body := range []string{`{"count":0}`, `{"count":101}`, `{"timeout":"x"}`} {
		r.call("POST", at+"/fork", body, 400, nil)
	}
	r.call("POST", at+"/connect", `{"memory":false}`, 400, nil)
	for _, path := range []string{"/connect", "/fork", "/pause", "/timeout", "/snapshots"} {
		r.call("POST", "/sandboxes/sb-none"+path, `{}`, 404, nil)
	}
}

func TestSnapshotsAreTemplates(t *testing.T) {
	r := start(t)
	b := r.create(simple)
	var snap struct{ SnapshotID string }
	r.call("POST", "/sandboxes/"+b.ID+"/snapshots", `{"name":"mine"}`, 201, &snap)
	var list []struct{ SnapshotID string }
	if r.call("GET", "/snapshots?sandboxID="+b.ID, "", 200, &list); len(list) != 1 || list[0].SnapshotID != "mine" {
		t.Errorf("snapshots: %+v", list)
	}
	if r.call("GET", "/snapshots?name=other", "", 200, &list); len(list) != 0 {
		t.Errorf("snapshots by another name: %+v", list)
	}
	c := r.create(`{"templateID":"mine"}`)
	r.call("DELETE", "/sandboxes/"+c.ID, "", 204, nil)
	r.call("GET", "/templates/aliases/mine", "", 200, nil)
	r.call("GET", "/templates/aliases/none", "", 404, nil)
	r.call("DELETE", "/templates/mine%3Adefault", "", 204, nil)
	r.call("DELETE", "/templates/mine", "", 404, nil)
	r.call("DELETE", "/templates/a%2F..%2Fb", "", 404, nil)
}

// A sandbox that was made through one of the APIs can be used through the other.
func TestSandboxesOfV1(t *testing.T) {
	r := start(t)
	f, err := r.Fork(t.Context(), forkOne)
	if err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	var b box
	r.call("POST", "/v2/sandboxes/"+id+"/connect", `{"timeout":1}`, 200, &b)
	if resp, _ := r.send("POST", "/process.Process/List", b.header().with("Content-Type", "application/json"),
		"{}"); resp.StatusCode != 200 {
		t.Errorf("list processes: %s", resp.Status)
	}
	if s, err := r.Sandbox(t.Context(), id); err != nil || s.ExpiresAt != 0 {
		t.Errorf("it expires now: %+v, %v", s, err)
	}
	if s, err := r.Sandbox(t.Context(), r.create(simple).ID); err != nil || s.ExpiresAt == 0 {
		t.Errorf("/v1 sees %+v, %v", s, err)
	}
}

func TestAuditNamesTheSandbox(t *testing.T) {
	r := start(t)
	b := r.create(simple)
	r.send("GET", "/health", b.header(), "")
	r.Server.Close() // the audit line is written after the answer, and Close waits for it too
	log, err := os.ReadFile(r.AuditLog)
	if err != nil || !bytes.Contains(log, []byte(`"host":"49983-`+b.ID+`"`)) ||
		!bytes.Contains(log, []byte(`"path":"/v2/sandboxes"`)) ||
		!bytes.Contains(log, []byte(`"route":"E2B sandbox"`)) || !bytes.Contains(log,
		[]byte(`"route":"POST /v2/sandboxes"`)) {
		t.Errorf("%s, %v", log, err)
	}
}
