package v1_test

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
)

// port serves h on a port of this host. The guests of these tests use the host's ports.
func port(t *testing.T, h http.HandlerFunc) int {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().(*net.TCPAddr).Port
}

// closedPort returns a port without a listener.
func closedPort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// ask sends a request with the given Host header to the API, and returns the status, the headers
// and the body. The host can be the host name of a port.
func ask(t *testing.T, r *apirig.Rig, host, path string, header ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequest("GET", r.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(p)
}

const bearer = "Bearer " + token

func TestPortsByPath(t *testing.T) {
	r := start(t, apirig.Options{})
	id := fork(t, r, 1)[0].ID
	hello := port(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/fails" {
			w.WriteHeader(http.StatusBadGateway)
		}
		fmt.Fprint(w, r.RequestURI)
	})
	base := fmt.Sprintf("/v1/sandboxes/%s/proxy/%d", id, hello)
	for path, want := range map[string]string{base: "/", base + "/a//../%2e%2e/b?c": "/a//../%2e%2e/b?c",
		base + "/../../exec": "/../../exec"} {
		if status, h, body := ask(t, r, "", path, "Authorization", bearer); status != http.StatusOK || body != want ||
			h.Get("Forkd-Error") != "" {
			t.Errorf("%s: %d, %v, %s", path, status, h, body)
		}
	}
	if status, h, _ := ask(t, r, "", base+"/fails", "Authorization", bearer); status != http.StatusBadGateway ||
		h.Get("Forkd-Error") != "" {
		t.Errorf("the guest's own error: %d, %v", status, h)
	}
	for _, c := range []struct {
		path   string
		header []string
		status int
		words  string
	}{
		{fmt.Sprintf("/v1/sandboxes/%s/proxy/%d/", id, closedPort(t)), []string{"Authorization", bearer}, 502,
			"no server listens on 127.0.0.1:"},
		{fmt.Sprintf("/v1/sandboxes/sb-none/proxy/%d/", hello), []string{"Authorization", bearer}, 404, "sb-none"},
		{base + "/", nil, 401, "missing"},
		{base + "/", []string{"Forkd-Token", "wrong"}, 401, "invalid"},
		{base + "/healthz", nil, 401, "missing"},
		{base + "/", []string{"Authorization", bearer, "Origin", "https://example.org"}, 403, "cross-origin"},
		{base + "/", []string{"Authorization", bearer, "Sec-Fetch-Site", "same-site"}, 403, "cross-origin"},
		// A page of a guest sends this request.
		{base + "/", []string{"Authorization", bearer, "Origin", "null"}, 403, "cross-origin"},
		{base + "/", []string{"Authorization", bearer, "Service-Worker", "script"}, 403, "service worker"},
		{"/v1/sandboxes/" + id + "/proxy/0/", []string{"Authorization", bearer}, 404, "no such route"},
		{"/v1/sandboxes/" + id + "/proxy/10.0.0.1:80/", []string{"Authorization", bearer}, 404, "no such route"},
	} {
		if status, _, body := ask(t, r, "", c.path, c.header...); status != c.status || !strings.Contains(body, c.words) {
			t.Errorf("%s %q: %d, %s, want %d with %q", c.path, c.header, status, body, c.status, c.words)
		}
	}
	if _, _, body := ask(t, r, "", "/metrics", "Authorization", bearer); !strings.Contains(body,
		`forkd_inbound_streams_total{kind="http",outcome="ok"} 4`) ||
		!strings.Contains(body, `outcome="refused"} 1`) || !strings.Contains(body, "forkd_inbound_streams 0") {
		t.Errorf("metrics:\n%s", grep(body, "inbound"))
	}
}

func grep(text, word string) string {
	var found []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			found = append(found, line)
		}
	}
	return strings.Join(found, "")
}

func TestPortsByHost(t *testing.T) {
	r := start(t, apirig.Options{})
	boxes := fork(t, r, 2)
	id := boxes[0].ID
	echo := port(t, func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "own", Value: "1"})
		fmt.Fprint(w, r.Host, r.URL.Path, r.Header.Get("Authorization"), r.Header.Get("Cookie"))
	})
	private := fmt.Sprintf("%d-%s.%s", echo, id, apirig.Domain)
	if status, h, body := ask(t, r, private, "/healthz", "Forkd-Token", token, "Authorization", "Basic x", "Cookie",
		"own=1"); status != http.StatusOK ||
		body != private+"/healthzBasic xown=1" || h.Get("Set-Cookie") != "own=1" {
		t.Errorf("%d, %v, %s", status, h, body)
	}
	signed, err := r.PortURL(t.Context(), id, echo, client.PortURLRequest{TTLSecs: 3600})
	if err != nil || signed.ExpiresAt < time.Now().Unix()+3500 {
		t.Fatalf("%+v, %v", signed, err)
	}
	brief, err := r.PortURL(t.Context(), id, echo, client.PortURLRequest{TTLSecs: 0.001})
	if err != nil {
		t.Fatal(err)
	}
	host := hostOf(t, signed.URL)
	expired := hostOf(t, brief.URL)
	label, _, _ := strings.Cut(host, ".")
	permission := label[strings.LastIndex(label, "-")+1:]
	named := func(port int, id, permission string) string {
		return fmt.Sprintf("%d-%s-%s.%s", port, id, permission, apirig.Domain)
	}
	for _, c := range []struct {
		name, host string
		status     int
		words      string
	}{
		{"signed", host, 200, host + "/version"},
		{"signed, in capitals and with a port", strings.ToUpper(host) + ":8889", 200, ""},
		{"expired", expired, 403, "expired"},
		{"other port", named(echo+1, id, permission), 403, "signature"},
		{"other sandbox", named(echo, boxes[1].ID, permission), 403, "signature"},
		{"tampered", named(echo, id, flip(permission)), 403, "signature"},
		{"cut", named(echo, id, permission[:20]), 403, "signature"},
		{"unsigned", private, 401, "Forkd-Token"},
		{"no port", "0-sb-x." + apirig.Domain, 404, "PORT-ID"},
		{"the domain itself is the API", apirig.Domain, 401, "missing"},
	} {
		if status, _, body := ask(t, r, c.host, "/version"); status != c.status || !strings.Contains(body, c.words) {
			t.Errorf("%s: %d, %s, want %d with %q", c.name, status, body, c.status, c.words)
		}
	}
	if status, _, body := ask(t, r, host, "/", "Authorization", bearer); status != http.StatusOK ||
		strings.Contains(body, token) {
		t.Errorf("the token, where none is asked for: %d, %s", status, body)
	}
	if _, err := r.PortURL(t.Context(), "sb-none", echo, client.PortURLRequest{}); !client.IsNotFound(err) {
		t.Errorf("a URL of no sandbox: %v", err)
	}
	if _, err := r.PortURL(t.Context(), id, 0, client.PortURLRequest{}); !client.IsStatus(err, http.StatusBadRequest) {
		t.Errorf("a URL of port 0: %v", err)
	}
	if err := r.Kill(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if status, _, _ := ask(t, r, host, "/"); status != http.StatusNotFound {
		t.Errorf("a URL of a killed sandbox: %d", status)
	}
	log, err := os.ReadFile(r.AuditLog)
	if err != nil || !strings.Contains(string(log), fmt.Sprintf(`"host":"%d-%s"`, echo, id)) ||
		strings.Contains(string(log), permission) {
		t.Errorf("audit log (%v):\n%s", err, grep(string(log), `"host"`))
	}
}

// Requests by signed URLs have limited rates: for each sandbox, for each owner, and in total.
// Requests with a token are not limited.
func TestStrangersAreLimited(t *testing.T) {
	const burst = 2
	r := start(t, apirig.Options{Limits: face.Limits{SignedBurst: burst, SignedPerSecond: 1e-9},
		Tokens: []auth.Token{{Name: "b", Scope: auth.Run}}})
	boxes := fork(t, r, 8)
	other, err := client.New(r.URL, r.Tokens["b"])
	if err != nil {
		t.Fatal(err)
	}
	more, err := other.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 3})
	if err != nil {
		t.Fatal(err)
	}
	served := func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "served") }
	ports := []int{port(t, served), port(t, served)}
	signed := func(s client.Sandbox, port int) string {
		t.Helper()
		u, err := r.PortURL(t.Context(), s.ID, port, client.PortURLRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return hostOf(t, u.URL)
	}
	came, most := 0, 6*burst
	for i, s := range append(slices.Clone(boxes), more.Sandboxes...) {
		if i == len(boxes) { // a sandbox of another owner
			most = 8 * burst
		}
		for n := range burst + 1 {
			want := http.StatusTooManyRequests
			if n < burst && came < most {
				want = http.StatusOK
				came++
			}
			status, h, body := ask(t, r, signed(s, ports[n%2]), "/")
			if refused := status == http.StatusTooManyRequests; status != want || refused != (h.Get("Retry-After") != "") {
				t.Errorf("sandbox %d, request %d: %d, %v, %s, want %d", i, n, status, h, body, want)
			}
		}
	}
	refused := fmt.Sprintf(`forkd_inbound_streams_total{kind="http",outcome="refused"} %d`, (len(boxes)+len(more.Sandboxes))*(burst+1)-came)
	if _, _, text := ask(t, r, "", "/metrics", "Authorization", bearer); !strings.Contains(text, refused+"\n") {
		t.Errorf("no %s in\n%s", refused, grep(text, "streams_total"))
	}
	private := fmt.Sprintf("%d-%s.%s", ports[0], boxes[0].ID, apirig.Domain)
	if status, _, body := ask(t, r, private, "/", "Forkd-Token", token); status != http.StatusOK {
		t.Errorf("with the token: %d, %s", status, body)
	}
}

// flip returns a permission with a different first character.
func flip(permission string) string {
	if permission[0] == 'a' {
		return "b" + permission[1:]
	}
	return "a" + permission[1:]
}

func hostOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" || u.Path != "/" {
		t.Fatalf("%s: %v", address, err)
	}
	return u.Host
}

func TestDialPort(t *testing.T) {
	r := start(t, apirig.Options{Limits: face.Limits{StreamsPerSandbox: 2}})
	boxes := fork(t, r, 2)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				sum := sha256.New()
				io.Copy(sum, conn)
				conn.Write(sum.Sum(nil))
			}()
		}
	}()
	at := l.Addr().(*net.TCPAddr).Port
	dial := func(id string) client.PortConn {
		t.Helper()
		conn, err := r.DialPort(t.Context(), id, at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	first, second := dial(boxes[0].ID), dial(boxes[0].ID)
	if _, err := r.DialPort(t.Context(), boxes[0].ID, at); !client.IsStatus(err, http.StatusServiceUnavailable) {
		t.Errorf("a third stream to one sandbox: %v", err)
	}
	dial(boxes[1].ID)
	sent := strings.Repeat("0123456789abcdef", 1<<16)
	if _, err := io.WriteString(first, sent); err != nil {
		t.Fatal(err)
	}
	first.CloseWrite()
	got, err := io.ReadAll(first)
	if want := sha256.Sum256([]byte(sent)); err != nil || string(got) != string(want[:]) {
		t.Errorf("answered %x, %v", got, err)
	}
	if _, err := r.DialPort(t.Context(), boxes[1].ID, closedPort(t)); !client.IsStatus(err, http.StatusBadGateway) ||
		!strings.Contains(err.Error(), "no server listens") {
		t.Errorf("a port that nobody listens on: %v", err)
	}
	if _, err := r.DialPort(t.Context(), boxes[1].ID, 65536); !client.IsStatus(err, http.StatusBadRequest) {
		t.Errorf("port 65536: %v", err)
	}
	if err := r.Kill(t.Context(), boxes[0].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Read(make([]byte, 1)); err == nil { // the connection ends when the sandbox is killed
		t.Error("the stream of a killed sandbox goes on")
	}
	for { // the handler ends slightly later
		_, _, body := ask(t, r, "", "/metrics", "Authorization", bearer)
		if strings.Contains(body, `forkd_inbound_streams_total{kind="tcp",outcome="cut"} 1`) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// If a sandbox is killed, an answer that has begun is aborted, and a request without an answer gets
// an error.
func TestKillDuringARequest(t *testing.T) {
	r := start(t, apirig.Options{})
	boxes := fork(t, r, 2)
	asked := make(chan struct{}, 2)
	slow := port(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begin" {
			io.WriteString(w, "begun\n")
			http.NewResponseController(w).Flush()
		}
		asked <- struct{}{}
		<-r.Context().Done()
	})
	get := func(id, path string) (*http.Response, error) {
		req, err := http.NewRequest("GET", fmt.Sprintf("%s/v1/sandboxes/%s/proxy/%d%s", r.URL, id, slow, path), nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", bearer)
		return http.DefaultClient.Do(req)
	}
	resp, err := get(boxes[0].ID, "/begin")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer := bufio.NewReader(resp.Body)
	if line, err := answer.ReadString('\n'); err != nil || line != "begun\n" {
		t.Fatalf("%q, %v", line, err)
	}
	<-asked
	if err := r.Kill(t.Context(), boxes[0].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := answer.ReadByte(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the answer of a killed sandbox ends with %v", err)
	}
	go func() { <-asked; r.Kill(t.Context(), boxes[1].ID) }()
	resp, err = get(boxes[1].ID, "/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if p, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusConflict ||
		!strings.Contains(string(p), "cut off: the sandbox was deleted") {
		t.Errorf("%d, %s", resp.StatusCode, p)
	}
}
