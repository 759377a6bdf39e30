package e2b_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
)

var forkOne = client.ForkRequest{SnapshotTag: "a.b", N: 1}

// sign returns the query of a signed URL, as the SDKs make it.
func sign(path, operation, user, token string, end int64) string {
	text, q := strings.Join([]string{path, operation, user, token}, ":"), url.Values{"path": {path}}
	if user != "" {
		q.Set("username", user)
	}
	if end != 0 {
		text += fmt.Sprintf(":%d", end)
		q.Set("signature_expiration", fmt.Sprint(end))
	}
	sum := sha256.Sum256([]byte(text))
	q.Set("signature", "v1_"+base64.RawStdEncoding.EncodeToString(sum[:]))
	return "/files?" + q.Encode()
}

// A file of a signed URL is served at the daemon's own address. An HTML page at this address gets
// an opaque origin. If it did not, its scripts would have the daemon's origin, and a daemon without
// tokens accepts requests from its own origin.
func TestSignedPageHasNoOrigin(t *testing.T) {
	r := start(t)
	b := r.create(simple)
	page := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(page, []byte("<script>fetch('/v1/sandboxes')</script>"), 0o600); err != nil {
		t.Fatal(err)
	}
	navigation := header{"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
	resp, out := r.send("GET", sign(page, "read", "", b.Access, time.Now().Unix()+1000), navigation, "")
	csp := resp.Header.Get("Content-Security-Policy")
	if resp.StatusCode != 200 || !strings.Contains(out, "<script>") || !strings.HasPrefix(csp, "sandbox ") ||
		strings.Contains(csp, "allow-same-origin") {
		t.Errorf("%s, policy %q: %s", resp.Status, csp, out)
	}
}

// A signed URL permits one operation on one file to anyone who has it, whether or not the request
// names the sandbox in headers.
func TestSignedFiles(t *testing.T) {
	r := start(t)
	b := r.create(simple)
	r.create(simple)
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	later, before := time.Now().Unix()+1000, time.Now().Unix()-10
	raw, long := header{"Content-Type": "application/octet-stream"}, "/"+strings.Repeat("x", 4096)
	named := header{"E2b-Sandbox-Id": b.ID}
	byHost := header{"Host": "49983-" + b.ID + "." + apirig.Domain}
	for _, c := range []struct {
		name, method, at string
		h                header
		want             int
	}{
		{"read", "GET", sign(path, "read", "", b.Access, 0), nil, 200},
		{"named", "GET", sign(path, "read", "", b.Access, 0), named, 200},
		{"by host", "GET", sign(path, "read", "root", b.Access, later), byHost, 200},
		{"expired", "GET", sign(path, "read", "", b.Access, before), nil, 401},
		{"as a write", "POST", sign(path, "read", "", b.Access, 0), named, 401},
		{"other file", "GET", strings.Replace(sign(path, "read", "", b.Access, 0), "file", "other", 1), named, 401},
		{"other user", "GET", sign(path, "read", "", b.Access, 0) + "&username=root", named, 401},
		{"forged", "GET", sign(path, "read", "", b.Access+"0", 0), byHost, 401},
		{"forged, unnamed", "GET", sign(path, "read", "", b.Access+"0", 0), nil, 401},
		{"write", "POST", sign(path, "write", "", b.Access, later), raw, 200},
		{"a path that no file has", "GET", sign(long, "read", "", b.Access, 0), nil, 400},
		{"the same, named", "GET", sign(long, "read", "", b.Access, 0), named, 400},
		{"the same, by host", "GET", sign(long, "read", "", b.Access, 0), byHost, 400},
		{"a user that nobody is", "GET", sign(path, "read", long, b.Access, 0), nil, 400},
		{"no expiry", "GET", sign(path, "read", "", b.Access, 0) + "&signature_expiration=" + long, nil, 401},
	} {
		body := ""
		if c.method == "POST" {
			body = "other"
		}
		resp, out := r.send(c.method, c.at, c.h, body)
		if resp.StatusCode != c.want {
			t.Errorf("%s: %s %s", c.name, resp.Status, out)
		}
		if c.name == "expired" && !strings.Contains(out, "signature is already expired") {
			t.Errorf("expired: %s", out)
		}
	}
}

// A signed URL that names no sandbox is compared with the tokens of all sandboxes. The rate of such
// searches is limited for each peer. So forged URLs of one client do not make the daemon refuse the
// URLs of other clients.
func TestSearchesForASignatureAreLimited(t *testing.T) {
	o := apirig.Options{}
	o.Limits.SignedPerSecond, o.Limits.SignedBurst = 1e-9, 10 // one peer can have a fifth
	r := startWith(t, o)
	b := r.create(simple)
	path := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 3 { // an expired URL causes no search
		resp, out := r.send("GET", sign(path, "read", "", b.Access, time.Now().Unix()-10), nil, "")
		if resp.StatusCode != 401 || !strings.Contains(out, "expired") {
			t.Errorf("expired: %s %s", resp.Status, out)
		}
	}
	for n, want := range []int{401, 401, 429} {
		if resp, out := r.send("GET", sign("/x", "read", "", "wrong", 0), nil, ""); resp.StatusCode != want {
			t.Errorf("search %d: %s %s, want %d", n, resp.Status, out, want)
		}
	}
	other := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext}}
	for n, want := range []int{200, 200, 429} {
		resp, err := other.Get(r.URL + sign(path, "read", "", b.Access, 0))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("search %d of another peer: %s, want %d", n, resp.Status, want)
		}
	}
	named := header{"E2b-Sandbox-Id": b.ID} // needs no search
	if resp, out := r.send("GET", sign("/x", "read", "", "wrong", 0), named, ""); resp.StatusCode != 401 {
		t.Errorf("of a sandbox that is named: %s %s", resp.Status, out)
	}
}

// The ports of sandboxes made by E2B's API are open to every client that knows the id, as their
// creators expect. Ports of all other sandboxes, and of sandboxes created with private ports, need
// a token.
func TestPorts(t *testing.T) {
	r := start(t)
	guest := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.URL.Path, r.Header.Get("X-Access-Token"), r.Header.Get("X-API-Key"),
			r.Header.Get("E2b-Traffic-Access-Token"))
	}))
	defer guest.Close()
	port := fmt.Sprint(guest.Listener.Addr().(*net.TCPAddr).Port)
	open, private := r.create(simple), r.create(`{"templateID":"a.b","network":{"allowPublicTraffic":false}}`)
	f, err := r.Fork(t.Context(), forkOne)
	if err != nil {
		t.Fatal(err)
	}
	var v1 box
	r.call("POST", "/sandboxes/"+f.Sandboxes[0].ID+"/connect", `{"timeout":1}`, 200, &v1)
	host := func(b box) header { return header{"Host": port + "-" + b.ID + "." + apirig.Domain} }
	headers := func(b box) header { return header{"E2b-Sandbox-Id": b.ID, "E2b-Sandbox-Port": port} }
	for _, c := range []struct {
		name string
		h    header
		want int
	}{
		{"open", host(open), 200},
		{"open, by headers", headers(open), 200},
		{"private", host(private), 403},
		{"private, by headers", headers(private), 403},
		{"private, other token", host(private).with("E2B-Traffic-Access-Token", open.Traffic), 403},
		{"private, token", host(private).with("E2B-Traffic-Access-Token", private.Traffic), 200},
		{"private, the daemon's token", host(private).with(auth.TokenHeader, apirig.Token), 200},
		{"of /v1", host(v1), 401},
		{"of /v1, by headers", headers(v1), 403},
		{"of /v1, token", headers(v1).with("E2B-Traffic-Access-Token", v1.Traffic), 200},
	} {
		// At a sandbox's host name, every path belongs to the guest, even a path that the control
		// plane also has. The client's API key does not reach the guest.
		resp, out := r.send("GET", "/sandboxes", c.h.with("X-API-Key", "e2b_"+apirig.Token), "")
		if resp.StatusCode != c.want || c.want == 200 && out != "/sandboxes" {
			t.Errorf("%s: %s %s", c.name, resp.Status, out)
		}
	}
	if resp, out := r.send("GET", "/teams", headers(open).with("X-API-Key", "own"), ""); out != "/teamsown" {
		t.Errorf("a key of the guest's own: %s %s", resp.Status, out)
	}
	bearers := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("Authorization"))
	}))
	defer bearers.Close()
	own := headers(open).with("E2b-Sandbox-Port", fmt.Sprint(bearers.Listener.Addr().(*net.TCPAddr).Port))
	for token, want := range map[string]string{"own": "Bearer own", apirig.Token: ""} {
		if resp, out := r.send("GET", "/", own.with("Authorization", "Bearer "+token), ""); out != want {
			t.Errorf("the bearer token %s: %s %q, want %q", token, resp.Status, out, want)
		}
	}
	closed := headers(open).with("E2b-Sandbox-Port", "1")
	if resp, out := r.send("GET", "/", closed, ""); resp.StatusCode != 502 || !strings.Contains(out, `"port":1`) ||
		!strings.Contains(out, "port is not open") {
		t.Errorf("a closed port: %s %s", resp.Status, out)
	}
	for _, p := range []string{"0", "65536", "x"} {
		if resp, _ := r.send("GET", "/health", headers(open).with("E2b-Sandbox-Port", p), ""); resp.StatusCode != 400 {
			t.Errorf("port %s: %s", p, resp.Status)
		}
	}
	for path, want := range map[string]int{"/v2/sandboxes": 200, "/nothing": 404} {
		if resp, out := r.send("GET", path, apiKey.with("Host", "api."+apirig.Domain), ""); resp.StatusCode != want {
			t.Errorf("api.DOMAIN%s: %s %s", path, resp.Status, out)
		}
	}
}

// The rate limit of strangers applies to clients without a token, at ports and at the agent.
func TestStrangersAreLimited(t *testing.T) {
	r := startWith(t, apirig.Options{Limits: face.Limits{SignedBurst: 1, SignedPerSecond: 1e-9}})
	guest := httptest.NewServer(http.NotFoundHandler())
	defer guest.Close()
	for port, path := range map[string]string{fmt.Sprint(guest.Listener.Addr().(*net.TCPAddr).Port): "/",
		"49983": "/health"} {
		b := r.create(simple)
		at := header{"E2b-Sandbox-Id": b.ID, "E2b-Sandbox-Port": port}
		for i, want := range []bool{false, true, true} {
			if resp, out := r.send("GET", path, at, ""); (resp.StatusCode == 429) != want {
				t.Errorf("port %s, request %d: %s %s", port, i, resp.Status, out)
			}
		}
		if resp, out := r.send("GET", path, at.with("E2B-Traffic-Access-Token", b.Traffic), ""); resp.StatusCode == 429 {
			t.Errorf("port %s, with a token: %s %s", port, resp.Status, out)
		}
	}
}

// A request whose path only resembles the path of a health check needs a token.
func TestOtherFormsOfHealthWantAToken(t *testing.T) {
	r := start(t)
	b := r.create(simple)
	for _, path := range []string{"/process.Process/List%2f..%2f..%2fhealth", "/contexts/x%2f..%2f..%2fhealth",
		"/x/../health", "/%68ealth"} {
		for _, port := range []string{"49983", "49999"} {
			at := header{"E2b-Sandbox-Id": b.ID, "E2b-Sandbox-Port": port}
			if resp, out := r.send("DELETE", path, at, ""); resp.StatusCode != 401 {
				t.Errorf("%s at port %s: %s %s", path, port, resp.Status, out)
			}
		}
	}
}

func TestCodeInterpreterWantsAToken(t *testing.T) {
	r := start(t)
	b := r.create(simple)
	at := header{"E2b-Sandbox-Id": b.ID, "E2b-Sandbox-Port": "49999"}
	for _, path := range []string{"/execute", "/contexts"} {
		if resp, out := r.send("POST", path, at, `{"code":"1"}`); resp.StatusCode != 401 {
			t.Errorf("%s: %s %s", path, resp.Status, out)
		}
	}
	if resp, out := r.send("POST", "/contexts", at.with("E2B-Traffic-Access-Token", b.Traffic),
		"{}"); resp.StatusCode != 200 {
		t.Errorf("with the traffic token: %s %s", resp.Status, out)
	}
}

// A client that has only a signed URL and reads slowly takes no place away from clients with a
// token.
func TestStrangersTakeNobodysPlaces(t *testing.T) {
	r := startWith(t, apirig.Options{Limits: face.Limits{Calls: 3, PerSandbox: 2}})
	b := r.create(simple)
	path := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<30); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		c, err := net.Dial("tcp", r.Server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", sign(path, "read", "", b.Access, 0))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp, err)
		}
	}
	resp, out := r.send("POST", "/v1/sandboxes/"+b.ID+"/exec", header{"Authorization": "Bearer " + apirig.Token,
		"Content-Type": "application/json"}, `{"args":["true"]}`)
	if resp.StatusCode != http.StatusOK {
		t.Errorf("%s %s", resp.Status, out)
	}
}

// A refused stranger gets the answer before its announced body has arrived, and the connection is
// closed.
func TestStrangersAreLetGo(t *testing.T) {
	r := startWith(t, apirig.Options{Limits: face.Limits{SignedBurst: 10, SignedPerSecond: 1e-9}})
	b := r.create(simple)
	forged := sign("/x", "write", "", b.Access+"0", 0)
	to := "\r\nE2b-Sandbox-Id: " + b.ID + "\r\nE2b-Sandbox-Port: "
	for _, c := range []struct{ request, want string }{
		{"POST / HTTP/1.1\r\nE2b-Sandbox-Id: sb-x", "502"},
		{"POST / HTTP/1.1" + to + "0", "400"},
		{"POST / HTTP/1.1" + to + "1", "502"},
		{"POST / HTTP/1.1" + to + "49983", "401"},
		{"POST /sandboxes HTTP/1.1", "401"},
		{"POST /files HTTP/1.1", "401"},
		{"POST " + forged + " HTTP/1.1", "401"},
		{"POST " + forged + " HTTP/1.1", "401"},
		{"POST " + forged + " HTTP/1.1", "429"}, // the rate of searches for the signer is limited
	} {
		conn, err := net.Dial("tcp", r.Server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		fmt.Fprintf(conn, "%s\r\nHost: x\r\nContent-Length: 100\r\n\r\n", c.request)
		out, err := io.ReadAll(conn)
		if _, status, _ := strings.Cut(string(out), " "); err != nil || !strings.HasPrefix(status, c.want) {
			t.Errorf("%q: %q, %v, want %s and the end", c.request, out, err, c.want)
		}
	}
}

// The audit log distinguishes tokens, signed URLs and strangers. It does not record text that a
// stranger sent in place of a sandbox id.
func TestWhoIsInTheAuditLog(t *testing.T) {
	r := start(t)
	b := r.create(simple)
	named := header{"E2b-Sandbox-Id": b.ID}
	for _, c := range []struct {
		path string
		h    header
		who  string
	}{
		{"/health", named, ""},
		{"/health", b.header(), "e2b-token"},
		{"/health", named.with("E2b-Sandbox-Port", "49999").with("E2B-Traffic-Access-Token", b.Traffic), "e2b-token"},
		{sign(t.TempDir(), "read", "", b.Access, 0), named, "signed-url"},
		{sign(t.TempDir(), "read", "", b.Access+"0", 0), named, ""},
		{"/health", header{"E2b-Sandbox-Id": strings.Repeat("<", 60<<10)}, ""},
	} {
		before, err := os.Stat(r.AuditLog)
		if err != nil {
			t.Fatal(err)
		}
		r.send("GET", c.path, c.h, "")
		line := r.auditLine(before.Size())
		var e audit.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if e.Who != c.who || len(line) > 2000 || e.Sandbox != "" && e.Sandbox != b.ID {
			t.Errorf("%s: %s, want %q", c.path, line, c.who)
		}
	}
}

// auditLine waits for a line of the audit log at the given offset, and returns the line. The daemon
// writes a line only after it has sent the answer.
func (r *rig) auditLine(from int64) string {
	r.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		p, err := os.ReadFile(r.AuditLog)
		if err != nil {
			r.t.Fatal(err)
		}
		if line, _, whole := strings.Cut(string(p[from:]), "\n"); whole {
			return line
		}
	}
	r.t.Fatal("there is no line in the audit log")
	return ""
}

// If a request names no user, the daemon chooses the user, even if the client sends a default of
// its own.
func TestDefaultUserIsTheDaemons(t *testing.T) {
	r := start(t)
	b := r.create(`{"templateID":"a.b"}`)
	file := filepath.Join(t.TempDir(), "file")
	resp, body := r.send("POST", "/files?path="+url.QueryEscape(file),
		header{"E2b-Sandbox-Id": b.ID, "X-Access-Token": b.Access,
			"Content-Type": "application/octet-stream", "Forkd-Default-User": "nobody"}, "x")
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", resp.Status, body)
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; int(uid) != os.Getuid() { // this host has no account "user"
		t.Errorf("the file belongs to %d", uid)
	}
}

// A stranger who knows the id of a sandbox made by /v1 can send health checks to the sandbox. They
// neither resume the sandbox nor keep it from becoming idle. With the sandbox's token, a health
// check reaches the agent.
func TestStrangersWakeNoIdleSandbox(t *testing.T) {
	r := start(t)
	f, err := r.Client.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1, IdleTimeoutSecs: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	ask := func(envd, interpreter int) {
		t.Helper()
		for port, want := range map[string]int{"49983": envd, "49999": interpreter} {
			h := header{"E2b-Sandbox-Id": id, "E2b-Sandbox-Port": port}
			if resp, out := r.send("GET", "/health", h, ""); resp.StatusCode != want {
				t.Errorf("health at port %s: %s %s, want %d", port, resp.Status, out, want)
			}
		}
	}
	ask(204, 200)
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) { // send health checks all the time
		ask := header{"E2b-Sandbox-Id": id}
		s, err := r.Client.Sandbox(t.Context(), id)
		if err != nil || time.Now().After(end) {
			t.Fatalf("the sandbox is not suspended: %+v, %v", s, err)
		}
		if s.State == "suspended" {
			break
		}
		r.send("GET", "/health", ask, "")
	}
	ask(502, 502)
	if s, err := r.Client.Sandbox(t.Context(), id); err != nil || s.State != "suspended" {
		t.Errorf("afterwards it is %s, %v", s.State, err)
	}
	var b box
	r.call("POST", "/sandboxes/"+id+"/connect", `{"timeout":60}`, 201, &b)
	if resp, out := r.send("GET", "/health", b.header(), ""); resp.StatusCode != 204 {
		t.Errorf("with its token: %s %s", resp.Status, out)
	}
}

// Metrics require only the scope read. So a request for metrics neither resumes a sandbox nor keeps
// it from becoming idle.
func TestMetricsKeepNoIdleSandboxAwake(t *testing.T) {
	r := start(t)
	f, err := r.Client.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1, IdleTimeoutSecs: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	measured := func(id string) (both []string) {
		for _, path := range []string{"/sandboxes/" + id + "/metrics", "/sandboxes/metrics?sandbox_ids=" + id} {
			resp, out := r.send("GET", path, r.key, "")
			if resp.StatusCode == 200 && strings.Contains(out, "memTotal") {
				both = append(both, path)
			}
		}
		return both
	}
	if both := measured(r.create(`{"templateID":"a.b"}`).ID); len(both) != 2 {
		t.Errorf("while a sandbox runs only %q measure it", both)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		s, err := r.Client.Sandbox(t.Context(), id)
		if err != nil || time.Now().After(end) {
			t.Fatalf("the sandbox is %s, %v", s.State, err)
		}
		if s.State == "suspended" {
			break
		}
		measured(id)
	}
	measured(id)
	if s, err := r.Client.Sandbox(t.Context(), id); err != nil || s.State != "suspended" {
		t.Errorf("afterwards it is %s, %v", s.State, err)
	}
}
