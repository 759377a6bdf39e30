package ui

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/forkd/forkd/api"
)

// daemon is a daemon that records requests.
type daemon struct {
	got    []*http.Request
	answer func(w http.ResponseWriter, r *http.Request)
}

func (d *daemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.got = append(d.got, r)
	if d.answer != nil {
		d.answer(w, r)
	}
}

// to is a transport. It sends requests to a test server, with a token, like
// client.Client.Transport.
type to struct{ url string }

func (t to) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Host = strings.TrimPrefix(t.url, "http://")
	r.Header.Set("Authorization", "Bearer secret")
	return http.DefaultTransport.RoundTrip(r)
}

// rig is a view with a daemon behind it.
type rig struct {
	t      *testing.T
	daemon daemon
	now    time.Time
	server *Server
	url    string
	cookie string
	base   string // path of the session
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return startRig(t, nil)
}

func startRig(t *testing.T, doctor func(context.Context) any) *rig {
	t.Helper()
	r := &rig{t: t, now: time.Now()}
	behind := httptest.NewServer(&r.daemon)
	t.Cleanup(behind.Close)
	front := httptest.NewUnstartedServer(nil)
	r.server = New(Config{Host: front.Listener.Addr().String(), Daemon: to{behind.URL}, Name: "test", Doctor: doctor,
		Now: func() time.Time { return r.now }})
	front.Config.Handler = r.server
	front.Start()
	t.Cleanup(front.Close)
	r.url = front.URL
	return r
}

// enter lets the rig's requests in.
func (r *rig) enter() {
	r.t.Helper()
	resp := r.send("GET", strings.TrimPrefix(r.server.URL(), r.url), nil)
	if len(resp.Cookies()) != 1 {
		r.t.Fatalf("the entry sets the cookies %v, want one", resp.Cookies())
	}
	r.cookie, r.base = resp.Cookies()[0].Name+"="+resp.Cookies()[0].Value, resp.Cookies()[0].Path
}

// send sends a request with the headers that the page sends. The given headers replace some of
// them; an empty value removes a header.
func (r *rig) send(method, path string, header map[string]string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequest(method, r.url+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if r.cookie != "" {
		req.Header.Set("Cookie", r.cookie)
	}
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	req.Header.Set("Sec-Fetch-Dest", "empty")
	if method != "GET" {
		req.Header.Set("Origin", r.url)
		req.Header.Set(Header, "1")
	}
	for name, value := range header {
		req.Header.Del(name)
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	if host := header["Host"]; host != "" {
		req.Host = host
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil {
		r.t.Fatal(err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp
}

func (r *rig) path(p string) string { return cmp.Or(r.base, "/") + p }

func TestCodeLetsInOneBrowserOnce(t *testing.T) {
	r := newRig(t)
	address := strings.TrimPrefix(r.server.URL(), r.url)
	resp := r.send("GET", address, map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"})
	c := resp.Cookies()[0]
	if resp.StatusCode != 200 || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || len(c.Path) < 20 ||
		resp.Header.Get("Refresh") != "0; url="+c.Path {
		t.Errorf("%s %v, Refresh %q", resp.Status, c, resp.Header.Get("Refresh"))
	}
	for name, code := range map[string]string{"used": address, "wrong": "/?code=x", "none": "/"} {
		if resp := r.send("GET", code, nil); resp.StatusCode != 401 || len(resp.Cookies()) > 0 {
			t.Errorf("%s code: %s %v", name, resp.Status, resp.Cookies())
		}
	}
	late := strings.TrimPrefix(r.server.URL(), r.url)
	r.now = r.now.Add(codeLife + time.Second)
	if resp := r.send("GET", late, nil); resp.StatusCode != 401 {
		t.Errorf("expired code: %s", resp.Status)
	}
}

func TestSessionsEnd(t *testing.T) {
	r := newRig(t)
	wrong := strings.Repeat("A", nameLength) + "/"
	for _, path := range []string{"main.js", "v1/sandboxes", wrong, wrong + "v1/sandboxes"} {
		if resp := r.send("GET", "/"+path, nil); resp.StatusCode != 401 {
			t.Errorf("%s without a session: %s", path, resp.Status)
		}
	}
	r.enter()
	other := r.base
	r.enter()
	if resp := r.send("GET", other+"v1/sandboxes", nil); resp.StatusCode != 401 {
		t.Errorf("at the path of another session: %s", resp.Status)
	}
	if resp := r.send("GET", r.path("v1/sandboxes"), nil); resp.StatusCode != 200 {
		t.Errorf("with a session: %s", resp.Status)
	}
	r.now = r.now.Add(sessionLife + time.Second)
	if resp := r.send("GET", r.path("v1/sandboxes"), nil); resp.StatusCode != 401 {
		t.Errorf("after the session: %s", resp.Status)
	}
	if len(r.daemon.got) != 1 {
		t.Errorf("the daemon got %d requests, want 1", len(r.daemon.got))
	}
	for range 3 * maxSessions {
		r.enter()
	}
	r.server.entry.mu.Lock()
	defer r.server.entry.mu.Unlock()
	if n := len(r.server.entry.sessions); n != maxSessions {
		t.Errorf("%d sessions are kept, want %d", n, maxSessions)
	}
}

// TestAttacksAreRefused sends the requests that a browser sends for pages of other people. Each
// request differs in one point from a request of the view's own page.
func TestAttacksAreRefused(t *testing.T) {
	other := "http://127.0.0.1:8000" // a guest's server at a forwarded port: the same site, another origin
	for _, c := range []struct {
		name, method, path string
		header             map[string]string
	}{
		{"DNS rebinding", "GET", "v1/sandboxes", map[string]string{"Host": "evil.example"}},
		{"DNS rebinding of the port", "GET", "", map[string]string{"Host": "127.0.0.1:1"}},
		{"another name of the host", "GET", "", map[string]string{"Host": "localhost"}},
		{"form of another site", "POST", "v1/forks", map[string]string{"Origin": "https://evil.example", Header: "",
			"Sec-Fetch-Site": "cross-site"}},
		{"form of a guest's page", "POST", "v1/forks", map[string]string{"Origin": other, Header: "",
			"Sec-Fetch-Site": "same-site"}},
		{"fetch of a guest's page", "POST", "v1/forks", map[string]string{"Origin": other, "Sec-Fetch-Site": "same-site"}},
		{"sandboxed frame", "POST", "v1/forks", map[string]string{"Origin": "null", "Sec-Fetch-Site": "cross-site"}},
		{"no header", "POST", "v1/forks", map[string]string{Header: ""}},
		{"no origin", "DELETE", "v1/sandboxes/sb-1", map[string]string{"Origin": "", "Sec-Fetch-Site": ""}},
		{"reading by a guest's page", "GET", "v1/sandboxes", map[string]string{"Sec-Fetch-Site": "same-site"}},
		{"script of a guest's page", "GET", "main.js", map[string]string{"Sec-Fetch-Site": "same-site",
			"Sec-Fetch-Dest": "script"}},
		{"clickjacking", "GET", "", map[string]string{"Sec-Fetch-Dest": "iframe", "Sec-Fetch-Site": "same-site"}},
		{"frame in the view", "GET", "v1/sandboxes/sb-1/files?path=/a.html", map[string]string{"Sec-Fetch-Dest": "iframe"}},
		{"WebSocket of a guest's page", "GET", "v1/sandboxes/sb-1/processes/1/attach", map[string]string{"Origin": other,
			"Sec-Fetch-Site": "same-site", "Connection": "Upgrade", "Upgrade": "websocket"}},
		{"WebSocket without an origin", "GET", "v1/sandboxes/sb-1/processes/1/attach", map[string]string{"Sec-Fetch-Site": "",
			"Connection": "Upgrade", "Upgrade": "websocket"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.enter()
			if resp := r.send(c.method, r.path(c.path), c.header); resp.StatusCode != http.StatusForbidden {
				t.Errorf("%s %s: %s, want 403", c.method, c.path, resp.Status)
			}
			if len(r.daemon.got) > 0 {
				t.Errorf("the daemon got %s %s", r.daemon.got[0].Method, r.daemon.got[0].URL)
			}
		})
	}
}

func TestOnlyRoutesOfThePageReachTheDaemon(t *testing.T) {
	r := newRig(t)
	r.enter()
	for _, c := range [][2]string{
		{"GET", "v1/sandboxes/sb-1/proxy/80/"}, {"GET", "v1/sandboxes/sb-1%2Fproxy%2F80/info"},
		{"GET", "v1/sandboxes/sb-1/tcp/22"}, {"GET", "v1/sandboxes/sb-1/exec"}, {"GET", "v1/sandboxes/../../metrics"},
		{"GET", "v1/snapshots/../sandboxes/info"}, {"POST", "v1/builds"}, {"GET", "metrics"},
		{"PUT", "v1/sandboxes/sb-1/ttl"}, {"GET", "v1/sandboxes//stats"}, {"POST", "mcp"},
	} {
		if resp := r.send(c[0], r.path(c[1]), nil); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s %s: %s, want 404", c[0], c[1], resp.Status)
		}
	}
	if len(r.daemon.got) > 0 {
		t.Errorf("the daemon got %s %s", r.daemon.got[0].Method, r.daemon.got[0].URL)
	}
	text, err := api.FS.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	document := string(text)
	for _, route := range routes {
		method, path, _ := strings.Cut(route, " ")
		_, below, found := strings.Cut(document, "\n  "+path+":\n")
		below, _, _ = strings.Cut(below, "\n  /")
		if !found || !strings.Contains("\n"+below, "\n    "+strings.ToLower(method)+":") {
			t.Errorf("the API has no %s", route)
		}
	}
}

func TestDaemonNeverSeesTheBrowser(t *testing.T) {
	r := newRig(t)
	r.daemon.answer = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Set-Cookie", "guest=1")
		_, _ = io.WriteString(w, "<script>alert(1)</script>")
	}
	r.enter()
	resp := r.send("PUT", r.path("v1/sandboxes/sb-1/files?path=/a%2Fb"), map[string]string{"Authorization": "Bearer x",
		"X-Forwarded-For": "1.2.3.4", "Forkd-Token": "x", "Referer": "http://x"})
	got := r.daemon.got[0]
	for _, name := range []string{"Cookie", "Origin", "Referer", "Sec-Fetch-Site", Header, "X-Forwarded-For",
		"Forkd-Token"} {
		if v := got.Header.Get(name); v != "" {
			t.Errorf("the daemon gets %s: %s", name, v)
		}
	}
	if got.Header.Get("Authorization") != "Bearer secret" ||
		got.URL.RequestURI() != "/v1/sandboxes/sb-1/files?path=/a%2Fb" {
		t.Errorf("the daemon gets %v, %v", got.URL, got.Header)
	}
	if resp.Header.Get("Set-Cookie") != "" || resp.Header.Get("X-Content-Type-Options") != "nosniff" ||
		resp.Header.Get("Content-Disposition") != "attachment" ||
		!slices.Equal(resp.Header.Values("Content-Security-Policy"), []string{apiPolicy}) {
		t.Errorf("an answer with bytes of a guest has the headers %v", resp.Header)
	}
}

func TestWebSocketsPass(t *testing.T) {
	r := newRig(t)
	r.daemon.answer = func(w http.ResponseWriter, req *http.Request) {
		c, err := websocket.Accept(w, req, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		kind, p, err := c.Read(req.Context())
		if err != nil || c.Write(req.Context(), kind, p) != nil {
			t.Error("no echo:", err)
		}
	}
	r.enter()
	c, _, err := websocket.Dial(t.Context(), r.url+r.path("v1/sandboxes/sb-1/processes/1/attach"), &websocket.DialOptions{
		HTTPHeader: http.Header{"Cookie": {r.cookie}, "Origin": {r.url}}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if err := c.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, p, err := c.Read(t.Context()); err != nil || string(p) != "hello" {
		t.Errorf("%q, %v", p, err)
	}
}

// The daemon may begin its answer before it has received the end of the request.
func TestEarlyAnswers(t *testing.T) {
	r := newRig(t)
	r.daemon.answer = func(w http.ResponseWriter, in *http.Request) {
		rc := http.NewResponseController(w)
		if err := rc.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		io.WriteString(w, "begin ")
		rc.Flush()
		body, err := io.ReadAll(in.Body)
		fmt.Fprintf(w, "%s %v", body, err)
	}
	r.enter()
	body, more := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), "POST", r.url+r.path("v1/sandboxes/sb-a/code"), body)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Cookie": r.cookie, "Sec-Fetch-Site": "same-origin",
		"Sec-Fetch-Dest": "empty", "Origin": r.url, Header: "1"} {
		req.Header.Set(name, value)
	}
	go io.WriteString(more, "first ")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	begin := make([]byte, len("begin "))
	if _, err := io.ReadFull(resp.Body, begin); err != nil {
		t.Fatal(err)
	}
	io.WriteString(more, "second")
	more.Close()
	if rest, err := io.ReadAll(resp.Body); string(rest) != "first second <nil>" || err != nil {
		t.Errorf("status %d, %q, %v", resp.StatusCode, rest, err)
	}
}

func TestDaemonAway(t *testing.T) {
	r := newRig(t)
	r.enter()
	r.server.API.(*httputil.ReverseProxy).Transport = to{"http://127.0.0.1:1"}
	resp := r.send("GET", r.path("v1/sandboxes"), nil)
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusBadGateway || !strings.Contains(string(body), "daemon_away") {
		t.Errorf("%s %s", resp.Status, body)
	}
}

// maxFirstView bounds the files that a browser loads for the first view, compressed, in bytes.
const maxFirstView = 60 << 10

// The page can request a check of this host only if the daemon runs on this host and the browser
// has a session.
func TestDoctor(t *testing.T) {
	var running, calls atomic.Int32
	r := startRig(t, func(context.Context) any {
		if running.Add(1) > 1 {
			t.Error("two diagnoses run at the same time")
		}
		defer running.Add(-1)
		calls.Add(1)
		return []map[string]string{{"check": "kernel", "verdict": "pass"}}
	})
	if resp := r.send("GET", "/doctor", nil); resp.StatusCode/100 != 4 || calls.Load() != 0 {
		t.Errorf("without a session: %s", resp.Status)
	}
	r.enter()
	text := func(path string) string {
		body, err := io.ReadAll(r.send("GET", r.base+path, nil).Body)
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(string(body))
	}
	if got, want := text("daemon"), `{"doctor":true,"name":"test"}`; got != want {
		t.Errorf("description: %s, want %s", got, want)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if got, want := text("doctor"), `[{"check":"kernel","verdict":"pass"}]`; got != want {
				t.Errorf("findings: %s, want %s", got, want)
			}
		})
	}
	all.Wait()
	if resp := r.send("POST", r.base+"doctor", nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("POST: %s", resp.Status)
	}
	if calls.Load() != 4 || len(r.daemon.got) != 0 {
		t.Errorf("%d diagnoses, requests to the daemon: %v", calls.Load(), r.daemon.got)
	}

	remote := newRig(t)
	remote.enter()
	if resp := remote.send("GET", remote.base+"doctor", nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("for a daemon on another host: %s", resp.Status)
	}
}

func TestFirstViewIsSmall(t *testing.T) {
	total := 0
	for _, name := range []string{"index.html", "main.js", "main.css", "icon.svg"} {
		content, err := assets.ReadFile("assets/" + name)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := w.Write(content); err != nil || w.Close() != nil {
			t.Fatal(err)
		}
		total += b.Len()
	}
	t.Logf("%d bytes", total)
	if total > maxFirstView {
		t.Errorf("the first view has %d bytes, at most %d", total, maxFirstView)
	}
}

// TestAssetsFitThePolicy checks that pages have no inline scripts or styles, and that answers have
// the right type and policy.
func TestAssetsFitThePolicy(t *testing.T) {
	r := newRig(t)
	r.enter()
	inline := regexp.MustCompile(`<script>|<style|\son[a-z]+=|\sstyle=|javascript:`)
	for path, kind := range map[string]string{"": "text/html", "main.js": "text/javascript", "main.css": "text/css",
		"terminal.js": "text/javascript", "terminal.css": "text/css",
		"charts.js": "text/javascript", "charts.css": "text/css", "icon.svg": "image/svg+xml"} {
		resp := r.send("GET", r.path(path), nil)
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), kind) ||
			resp.Header.Get("Content-Security-Policy") != policy || len(body) == 0 {
			t.Errorf("%q: %s %v", path, resp.Status, resp.Header)
		}
		if found := inline.Find(body); kind == "text/html" && found != nil {
			t.Errorf("%q has %q", path, found)
		}
	}
	for _, path := range []string{"../ui.go", "assets/main.js", "nothing"} {
		if resp := r.send("GET", r.path(path), nil); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%q: %s", path, resp.Status)
		}
	}
}
