package viewhttp_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/guest/agent"
	"github.com/forkd/forkd/internal/ui"
)

func TestMain(m *testing.M) { apirig.Main(m, agent.Main) }

// browser sends requests like a page that was loaded from an origin.
type browser struct {
	t      *testing.T
	url    string
	origin string
	cookie *http.Cookie
}

func start(t *testing.T, tokens ...auth.Token) (*apirig.Rig, *browser) {
	t.Helper()
	rig := apirig.Start(t, apirig.Options{Tokens: tokens, Agent: apirig.SelfAgent})
	if _, err := rig.Bake(t.Context(), rig.Parent); err != nil {
		t.Fatal(err)
	}
	return rig, &browser{t: t, url: rig.URL, origin: rig.URL}
}

// send sends a request. The headers in the map replace headers of the page; an empty value removes
// a header.
func (b *browser) send(ctx context.Context, method, path, body string,
	header map[string]string) (*http.Response, error) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, b.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	req.Header.Set("Sec-Fetch-Dest", "empty")
	if method != http.MethodGet {
		req.Header.Set("Origin", b.origin)
		req.Header.Set(ui.Header, "1")
	}
	if b.cookie != nil {
		req.AddCookie(b.cookie)
	}
	for name, value := range header {
		req.Header.Del(name)
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	req.Host = header["Host"]
	return http.DefaultTransport.RoundTrip(req)
}

// wants fails the test if a request is not answered with the given status. It returns the body of
// the answer.
func (b *browser) wants(status int, method, path, body string, header map[string]string) string {
	b.t.Helper()
	resp, err := b.send(b.t.Context(), method, path, body, header)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		b.t.Errorf("%s %s %v: %s %s %v, want %d", method, path, header, resp.Status, text, err, status)
	}
	policy := resp.Header.Get("Content-Security-Policy")
	if status == 200 && !strings.Contains(policy, "frame-ancestors 'none'") {
		b.t.Errorf("%s %s: policy %q", method, path, policy)
	}
	return string(text)
}

// logIn gives the browser a session.
func (b *browser) logIn(token string) {
	b.t.Helper()
	resp, err := b.send(b.t.Context(), "POST", "/ui/session", `{"token": "`+token+`"}`, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	resp.Body.Close()
	if len(resp.Cookies()) != 1 {
		b.t.Fatalf("%s, cookies %v", resp.Status, resp.Cookies())
	}
	b.cookie = resp.Cookies()[0]
}

const status401, status403, status404 = http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound

func TestATokenOpensTheView(t *testing.T) {
	rig, b := start(t, auth.Token{Name: "reader", Scope: auth.Read})
	if page := b.wants(200, "GET", "/ui/", "", nil); !strings.Contains(page, "main.js") {
		t.Errorf("the page is %q", page)
	}
	b.wants(200, "GET", "/ui/main.js", "", nil)
	b.wants(status401, "GET", "/ui/v1/sandboxes", "", nil)
	b.wants(status401, "GET", "/ui/daemon", "", nil)
	for _, wrong := range []string{"", "wrong", "Bearer " + apirig.Token} {
		b.wants(status401, "POST", "/ui/session", `{"token": "`+wrong+`"}`, nil)
	}
	b.wants(http.StatusBadRequest, "POST", "/ui/session", `{"token": `, nil)
	b.wants(http.StatusBadRequest, "POST", "/ui/session", `{"token": "`+strings.Repeat("x", 5000)+`"}`, nil)

	b.logIn(apirig.Token)
	if c := b.cookie; !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure ||
		!strings.HasPrefix(c.Path, "/ui/") {
		t.Errorf("the cookie is %v", c)
	}
	base := b.cookie.Path
	if list := b.wants(200, "GET", base+"v1/snapshots", "", nil); !strings.Contains(list, rig.Parent.Tag) {
		t.Errorf("the snapshots are %s", list)
	}
	if name := b.wants(200, "GET", base+"daemon", "", nil); !strings.Contains(name, "token:default") {
		t.Errorf("the user is %s", name)
	}
	fork := `{"snapshot_tag": "` + rig.Parent.Tag + `", "n": 1}`
	b.wants(http.StatusCreated, "POST", base+"v1/forks", fork, map[string]string{"Content-Type": "application/json"})
	b.wants(http.StatusNotFound, "GET", base+"v1/sandboxes/sb-1/proxy/80/", "", nil)

	// A session has the scope of its token, and is found only at its own path.
	other := &browser{t: t, url: b.url, origin: b.origin}
	other.logIn(rig.Tokens["reader"])
	other.wants(200, "GET", other.cookie.Path+"v1/snapshots", "", nil)
	other.wants(status403, "POST", other.cookie.Path+"v1/forks", fork, nil)
	other.wants(status401, "GET", base+"v1/snapshots", "", nil)

	b.wants(http.StatusNoContent, "DELETE", base+"session", "", nil)
	b.wants(status401, "GET", base+"v1/snapshots", "", nil)
	other.wants(200, "GET", other.cookie.Path+"v1/snapshots", "", nil)

	log, err := os.ReadFile(rig.AuditLog)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(log, []byte(`"who":"token:reader"`)) || !bytes.Contains(log, []byte(`"path":"/ui/"`)) ||
		!bytes.Contains(log, []byte(`"path":"/v1/forks"`)) {
		t.Errorf("the audit log is\n%s", log)
	}
	refused := func(line []byte) bool {
		return bytes.Contains(line, []byte(`"method":"GET"`)) && bytes.Contains(line, []byte(`"status":401`))
	}
	if !slices.ContainsFunc(bytes.Split(log, []byte("\n")), refused) {
		t.Errorf("no audit line for a request without a session:\n%s", log)
	}
	for name, secret := range map[string]string{"path": base, "token": apirig.Token, "cookie": b.cookie.Value} {
		if bytes.Contains(log, []byte(secret)) {
			t.Errorf("the audit log has the %s of a session", name)
		}
	}
}

// TestARevokedTokenEndsItsSessions revokes a token while a page receives events.
func TestARevokedTokenEndsItsSessions(t *testing.T) {
	rig, b := start(t, auth.Token{Name: "other", Scope: auth.Run})
	b.logIn(rig.Tokens["other"])
	stream, err := b.send(t.Context(), "GET", b.cookie.Path+"v1/events", "", nil)
	if err != nil || stream.StatusCode != 200 {
		t.Fatal(stream, err)
	}
	defer stream.Body.Close()
	file, err := os.ReadFile(rig.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	if file, err = auth.Remove(file, "other"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(rig.TokenFile, file, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, stream.Body); err != nil { // waits until the stream ends
		t.Logf("the stream ends with %v", err)
	}
	b.wants(status401, "GET", b.cookie.Path+"v1/snapshots", "", nil)
	// The same name with another token is another user.
	if file, _, err = auth.Add(file, auth.Token{Name: "other", Scope: auth.Admin}, false); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(rig.TokenFile, file, 0o600); err != nil {
		t.Fatal(err)
	}
	b.wants(status401, "GET", b.cookie.Path+"v1/snapshots", "", nil)
}

// TestAttacksAreRefused sends requests that differ in one point from a request of the page.
func TestAttacksAreRefused(t *testing.T) {
	rig, b := start(t)
	b.logIn(apirig.Token)
	base, login := b.cookie.Path, `{"token": "`+apirig.Token+`"}`
	guest := "8080-sb-" + strings.Repeat("a", 26) + "." + apirig.Domain
	for _, c := range []struct {
		name, method, path, body string
		header                   map[string]string
		want                     int
	}{
		{"DNS rebinding", "GET", base + "v1/sandboxes", "", map[string]string{"Host": "evil.example"}, status403},
		{"DNS rebinding of the form", "GET", "/ui/", "", map[string]string{"Host": "evil.example"}, status403},
		{"a guest's host name", "GET", "/ui/", "", map[string]string{"Host": guest}, http.StatusBadGateway},
		{"a host name of E2B", "GET", "/ui/", "", map[string]string{"Host": "api." + apirig.Domain}, status404},
		{"clickjacking", "GET", "/ui/", "", map[string]string{"Sec-Fetch-Dest": "iframe",
			"Sec-Fetch-Site": "cross-site"}, status403},
		{"clickjacking by a guest's page", "GET", base, "", map[string]string{"Sec-Fetch-Dest": "iframe",
			"Sec-Fetch-Site": "same-site"}, status403},
		{"login by a form of another site", "POST", "/ui/session", login, map[string]string{
			"Origin": "https://evil.example", ui.Header: "", "Sec-Fetch-Site": "cross-site"}, status403},
		{"login by a guest's page", "POST", "/ui/session", login, map[string]string{"Origin": "http://127.0.0.1:1",
			"Sec-Fetch-Site": "same-site"}, status403},
		{"login without the header", "POST", "/ui/session", login, map[string]string{ui.Header: ""}, status403},
		{"login without an origin", "POST", "/ui/session", login, map[string]string{"Origin": ""}, status403},
		{"fork by a page of another origin", "POST", base + "v1/forks", "{}", map[string]string{
			"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"}, status403},
		{"fork without the header", "POST", base + "v1/forks", "{}", map[string]string{ui.Header: ""}, status403},
		{"end of a session by another page", "DELETE", base + "session", "", map[string]string{
			"Origin": "http://127.0.0.1:1"}, status403},
		{"the cookie at the API", "GET", "/v1/sandboxes", "", nil, status401},
		{"a guest's page at a path of the view", "GET", base + "v1/sandboxes/sb-1/proxy/80/", "", nil, status404},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &browser{t: t, url: b.url, origin: b.origin, cookie: b.cookie}
			if text := b.wants(c.want, c.method, c.path, c.body, c.header); strings.Contains(text, "main.js") {
				t.Error("the answer is the page of the view")
			}
		})
	}
	if list, err := rig.Sandboxes(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("the attacks have made %v, %v", list, err)
	}
	b.wants(200, "GET", base+"v1/sandboxes", "", nil)
}

// TestAddresses checks at which addresses a daemon serves the view.
func TestAddresses(t *testing.T) {
	rig, _ := start(t)
	open := apirig.New(t, apirig.Options{Open: true, Agent: apirig.SelfAgent})
	loopback, outside := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 5)}
	at := func(a net.Addr, method, path, body string) *http.Request {
		ctx := context.WithValue(t.Context(), http.LocalAddrContextKey, a)
		return httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	}
	named := &tls.ConnectionState{ServerName: "forkd.example.com"}
	for _, c := range []struct {
		name    string
		handler http.Handler
		at      net.Addr
		tls     *tls.ConnectionState
		host    string
		want    int
		text    string
	}{
		{"loopback", rig.Handler, loopback, nil, "localhost:8080", 200, "main.js"},
		{"loopback of IPv6", rig.Handler, &net.TCPAddr{IP: net.IPv6loopback}, nil, "[::1]:8080", 200, "main.js"},
		{"without TLS", rig.Handler, outside, nil, "10.0.0.5:8080", status403, "needs TLS"},
		{"without TLS, by a name of loopback", rig.Handler, outside, nil, "localhost:8080", status403, "needs TLS"},
		{"with TLS", rig.Handler, outside, named, "forkd.example.com:8443", 200, "main.js"},
		{"with TLS, by address", rig.Handler, outside, &tls.ConnectionState{}, "10.0.0.5:8443", 200, "main.js"},
		{"another name than the certificate's", rig.Handler, outside, named, "evil.example:8443", status403,
			"wrong_host"},
		{"a name without a server name", rig.Handler, outside, &tls.ConnectionState{}, "evil.example", status403,
			"wrong_host"},
		{"no tokens", open.Handler, loopback, nil, "localhost:8080", status403, "forkd ui"},
		{"unix socket", rig.Handler, &net.UnixAddr{Net: "unix"}, nil, "localhost", status403, "forkd ui"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := at(c.at, "GET", "/ui/", "")
			r.Host, r.TLS = c.host, c.tls
			w := httptest.NewRecorder()
			c.handler.ServeHTTP(w, r)
			if w.Code != c.want || !strings.Contains(w.Body.String(), c.text) {
				t.Errorf("%d %s, want %d with %q", w.Code, w.Body, c.want, c.text)
			}
		})
	}
	// If the view is served over TLS, a browser sends the cookie over TLS only.
	r := at(outside, "POST", "/ui/session", `{"token": "`+apirig.Token+`"}`)
	r.Host, r.TLS = "forkd.example.com", named
	r.Header.Set("Origin", "https://forkd.example.com")
	r.Header.Set(ui.Header, "1")
	w := httptest.NewRecorder()
	rig.Handler.ServeHTTP(w, r)
	if c := w.Result().Cookies(); len(c) != 1 || !c[0].Secure {
		t.Errorf("%d %s: the cookies are %v", w.Code, w.Body, c)
	}
}

// TestSessionsOfATokenAreBounded checks that a token with too many sessions loses its oldest
// session, and that other tokens lose none.
func TestSessionsOfATokenAreBounded(t *testing.T) {
	rig, first := start(t, auth.Token{Name: "many", Scope: auth.Read})
	first.logIn(apirig.Token)
	many := &browser{t: t, url: first.url, origin: first.origin}
	many.logIn(rig.Tokens["many"])
	oldest := *many
	for range 40 {
		many.logIn(rig.Tokens["many"])
	}
	first.wants(200, "GET", first.cookie.Path+"v1/snapshots", "", nil)
	many.wants(200, "GET", many.cookie.Path+"v1/snapshots", "", nil)
	oldest.wants(status401, "GET", oldest.cookie.Path+"v1/snapshots", "", nil)
}
