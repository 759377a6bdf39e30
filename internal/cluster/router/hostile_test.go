package router

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// fake is a node whose daemon is faked.
type fake struct {
	url  string
	name string           // the --node of its daemon
	list http.HandlerFunc // answers lists of sandboxes
	// The member of its list of moves; empty: there are none.
	moves string

	mu       sync.Mutex
	requests []*http.Request // all but those of the router itself
}

func (f *fake) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch {
	case req.UserAgent() == "forkd-router" && req.URL.Path == "/version":
		fmt.Fprintf(w, `{"node": %q, "host_memory_mib": 1000}`, f.name)
	case req.UserAgent() == "forkd-router" && req.URL.Path == "/v1/host/metrics":
		fmt.Fprint(w, `{"cpus": 2}`)
	case req.URL.Path == "/v1/moves":
		fmt.Fprintf(w, `{"nodes": [%s]}`, cmp.Or(f.moves, `{"moves": []}`))
	case req.UserAgent() == "forkd-router":
		fmt.Fprint(w, `[]`)
	default:
		f.mu.Lock()
		f.requests = append(f.requests, req)
		f.mu.Unlock()
		if req.URL.Path == "/v1/sandboxes" && f.list != nil {
			f.list(w, req)
		}
	}
}

func (f *fake) take() []*http.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := f.requests
	f.requests = nil
	return taken
}

// startFake starts a fake node, and a router with small bounds on lists. The router's list of nodes
// calls the node "fake". startFake returns the node and the URL of the router. The node's daemon
// reports the given name as its own.
func startFake(t *testing.T, name string) (f *fake, url string) {
	t.Helper()
	f = &fake{name: name}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	f.url = server.URL
	dir := t.TempDir()
	path, token := filepath.Join(dir, "nodes.json"), filepath.Join(dir, "token")
	text, err := json.Marshal(file{[]entry{{Name: "fake", URL: server.URL, TokenFile: token}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{path: text, token: []byte("secret-of-the-router")} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	router := httptest.NewServer(routerOf(t, path, func(r *Router) { r.pageBytes, r.listBytes = 1<<20, 2<<20 }))
	t.Cleanup(router.Close)
	return f, router.URL
}

func idOn(name string) string { return vmpool.IDPrefix + snapshot.NodeOf(name).NewID() }

// A node does not get hop-by-hop headers, claims about the client, or the router's own token.
func TestHeaders(t *testing.T) {
	f, url := startFake(t, "fake")
	get(t, "GET", url+"/v1/sandboxes/"+idOn("fake")+"/proxy/80/a%2fb//../c?x=1;y=%zz", "token", "", http.Header{
		"Connection": {"X-Hop, keep-alive"}, "X-Hop": {"1"}, "Te": {"gzip"}, "Proxy-Authorization": {"x"},
		"Keep-Alive": {"1"}, "X-Forwarded-For": {"1.2.3.4"}, "Forwarded": {"for=1.2.3.4"}, "X-Forwarded-Host": {"evil"},
		"Forkd-Repeat-Only": {"true"},
		"X-Kept":            {"1"}, "Host": {"name.example"}})
	got := f.take()
	if len(got) != 1 {
		t.Fatalf("%d requests", len(got))
	}
	r := got[0]
	for _, name := range []string{"X-Hop", "Te", "Proxy-Authorization", "Keep-Alive", "Forwarded", "Forkd-Repeat-Only"} {
		if v := r.Header.Values(name); len(v) > 0 {
			t.Errorf("%s: %q", name, v)
		}
	}
	if r.Header.Get("X-Kept") != "1" || r.Host != "name.example" || r.Header.Get("Authorization") != "Bearer token" ||
		strings.Contains(r.Header.Get("X-Forwarded-For"), "1.2.3.4") || r.Header.Get("X-Forwarded-Host") != "name.example" {
		t.Errorf("host %s, headers %v", r.Host, r.Header)
	}
	if _, rest, _ := strings.Cut(r.RequestURI, "/proxy/"); rest != "80/a%2fb//../c?x=1;y=%zz" {
		t.Errorf("the path for the guest is %q", r.RequestURI)
	}
}

// If a daemon does not report its name, it gets no repeated request. It may be of an earlier
// release, and would execute the request instead of saying that it has not executed it.
func TestOldDaemonsGetNoRepeatedRequest(t *testing.T) {
	f, url := startFake(t, "")
	resp, text := get(t, "POST", url+"/v1/forks", "token", `{"snapshot_tag": "a"}`, http.Header{"Idempotency-Key": {"k"}})
	if got := f.take(); resp.StatusCode < 500 || len(got) > 0 {
		t.Errorf("%s %s, and the daemon got %d requests", resp.Status, text, len(got))
	}
}

// A router holds the pages of many nodes while it merges them. Their total size is bounded.
func TestPagesOfManyNodesAreBounded(t *testing.T) {
	for count, want := range map[int]int{1: nodePage, 8: 100, 100: minPage} {
		f := &fake{}
		size := 10
		f.list = func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `[{"id": "sb-x", "created_at": "1970-01-01T00:00:00.5Z", "fill": %q}]`, strings.Repeat("x", size))
		}
		server := httptest.NewServer(f)
		defer server.Close()
		var list file
		for n := range count {
			list.Nodes = append(list.Nodes, entry{Name: fmt.Sprint("n", n), URL: server.URL})
		}
		text, err := json.Marshal(list)
		path := filepath.Join(t.TempDir(), "nodes.json")
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		router := httptest.NewServer(routerOf(t, path, func(r *Router) { r.listBytes = 2 << 20 }))
		defer router.Close()
		for _, query := range []string{"", "?partial=true"} {
			size = 10
			resp, body := get(t, "GET", router.URL+"/v1/sandboxes"+query, "token", "", nil)
			got := f.take()
			if limit := got[0].URL.Query().Get("limit"); resp.StatusCode != http.StatusOK || len(got) != count ||
				limit != fmt.Sprint(want) {
				t.Errorf("%d nodes: %s %s, %d requests for %s members", count, resp.Status, body, len(got), limit)
			}
			size = 900 << 10
			resp, body = get(t, "GET", router.URL+"/v1/sandboxes"+query, "token", "", nil)
			f.take()
			if tooLong := resp.StatusCode == http.StatusBadRequest; tooLong != (count > 4) {
				t.Errorf("%d nodes, long pages: %s %.100s", count, resp.Status, body)
			}
		}
	}
}

// A request for the events of sandboxes on several nodes is refused, because the stream of one node
// would silently lack some of these events.
func TestEventsOfSeveralNodes(t *testing.T) {
	f, url := startFake(t, "fake")
	for query, want := range map[string]int{
		"sandbox=" + idOn("fake") + "&sandbox=" + idOn("fake"):  http.StatusOK,
		"sandbox=" + idOn("fake") + "&sandbox=" + idOn("other"): http.StatusNotImplemented,
		"sandbox=" + idOn("fake") + "&sandbox=sb-x":             http.StatusNotImplemented,
		"sandbox=&sandbox=" + idOn("fake"):                      http.StatusNotImplemented,
		"label=a":                                               http.StatusNotImplemented,
	} {
		resp, body := get(t, "GET", url+"/v1/events?"+query, "token", "", nil)
		if got := f.take(); resp.StatusCode != want || (len(got) == 1) != (want == http.StatusOK) {
			t.Errorf("%s: %s %s, %d requests to the node", query, resp.Status, body, len(got))
		}
	}
}

// Whatever a request names, it reaches only nodes of the router's list.
func TestOnlyNodesOfTheListAreReached(t *testing.T) {
	f, url := startFake(t, "fake")
	reached := make(chan string, 100)
	internal := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		reached <- r.RequestURI
	}))
	defer internal.Close()
	address := strings.TrimPrefix(internal.URL, "http://")
	for _, id := range []string{address, "sb-" + address, "..", "sb-", "%2e%2e", "sb-" + strings.Repeat("a", 26),
		idOn("other"), strings.ToUpper(idOn("fake")), idOn("fake") + "x", "@" + address, strings.Repeat("a", 4000)} {
		for _, path := range []string{"/v1/sandboxes/" + id, "/v1/sandboxes/" + id + "/exec", "/v2/sandboxes/" + id} {
			resp, body := get(t, "GET", url+path, "token", "", nil)
			if resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusNotImplemented {
				t.Errorf("%.80s: %s %.200s", path, resp.Status, body)
			}
		}
		if !strings.Contains(id, "%") {
			get(t, "GET", url+"/anything", "token", "", http.Header{"E2b-Sandbox-Id": {id}})
			get(t, "POST", url+"/v1/forks", "token", `{"source_id": "`+id+`"}`, nil)
		}
	}
	if got := f.take(); len(got) > 0 {
		t.Errorf("the node got %d requests, such as %s", len(got), got[0].RequestURI)
	}
	host := strings.TrimPrefix(url, "http://")
	for _, head := range []string{
		"GET " + internal.URL + "/v1/sandboxes/" + idOn("fake") + " HTTP/1.1\r\nHost: x\r\n", // the URL of another server
		"CONNECT " + address + " HTTP/1.1\r\nHost: " + address + "\r\n",
		"GET /v1/sandboxes/" + idOn("fake") + " HTTP/1.1\r\nHost: " + address + "\r\n",
	} {
		raw(t, host, head+"Connection: close\r\n\r\n")
	}
	if got := f.take(); len(got) != 2 {
		t.Errorf("the node got %d requests, want those that name its sandbox", len(got))
	}
	if len(reached) > 0 {
		t.Errorf("a server that is not in the list got %s", <-reached)
	}
}

// raw sends bytes to the router, and returns its complete answer.
func raw(t *testing.T, address, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(bufio.NewReader(conn))
	if err != nil {
		t.Errorf("%.60q: %v", text, err)
	}
	return string(all)
}

// If two servers could read a request in different ways, it does not become two requests.
func TestSmuggling(t *testing.T) {
	f, url := startFake(t, "fake")
	id, host := idOn("fake"), strings.TrimPrefix(url, "http://")
	inner := "GET /v1/sandboxes/" + id + "/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
	for _, head := range []string{
		"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
		"Transfer-Encoding: xchunked\r\n", "Content-Length: 0\r\nContent-Length: 70\r\n", "Content-Length: +5\r\n",
		"Transfer-Encoding : chunked\r\n", "X: y\r\n Transfer-Encoding: chunked\r\n",
	} {
		raw(t, host, "POST /v1/sandboxes/"+id+"/exec HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"+head+"\r\n0\r\n\r\n"+inner)
		for _, r := range f.take() {
			if strings.Contains(r.RequestURI, "smuggled") {
				t.Errorf("%q: the node got %s", head, r.RequestURI)
			}
		}
	}
}

// If a node's list has no end, is not sorted or is not a list, the request ends with an error that
// names the node.
func TestHostileLists(t *testing.T) {
	f, url := startFake(t, "fake")
	name := "fake"
	sandbox := func(n int, fill string) string {
		created := time.Unix(int64(n+1), 0).UTC().Format(time.RFC3339Nano)
		return fmt.Sprintf(`{"id": %q, "created_at": %q, "fill": %q}`, idOn(name), created, fill)
	}
	count := 0
	page := func(next func() string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			all := make([]string, nodePage)
			for i := range all {
				all[i] = next()
			}
			w.Header().Set("Link", `</v1/sandboxes?cursor=x>; rel="next"`)
			fmt.Fprint(w, "["+strings.Join(all, ",")+"]")
		}
	}
	large := strings.Repeat("x", 2<<10)
	for kind, list := range map[string]http.HandlerFunc{
		"endless":   page(func() string { count++; return sandbox(count, large) }),
		"the same":  page(func() string { return sandbox(1, "") }),
		"backwards": page(func() string { count--; return sandbox(count, "") }),
		"no times":  page(func() string { return `{"id": "sb-1"}` }),
		"no list":   func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{}`) },
		"cut off":   func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `[{"id":`) },
		"no end": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `[]`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"upgraded": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Upgrade", "x")
			w.Header().Set("Connection", "Upgrade")
			w.WriteHeader(http.StatusSwitchingProtocols)
		},
		"empty": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Link", "x"); fmt.Fprint(w, `[]`) },
		"too long": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, strings.Repeat(" ", 2<<20))
		},
	} {
		f.list = list
		resp, body := get(t, "GET", url+"/v1/sandboxes", "token", "", nil)
		if kind == "endless" && resp.StatusCode == http.StatusBadRequest && strings.Contains(body, "limit") {
			continue
		}
		if resp.StatusCode != http.StatusBadGateway || !strings.Contains(body, "node fake") {
			t.Errorf("%s: %s %.200s", kind, resp.Status, body)
		}
	}
	// A sandbox whose id names another node, or none, is not in the list.
	own, other := sandbox(1, ""), ""
	name = "other"
	other = sandbox(2, "")
	f.list = func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Query().Get("cursor") == "" { // the first page has nothing for the router's list
			w.Header().Set("Link", `</v1/sandboxes?cursor=x>; rel="next"`)
			fmt.Fprint(w, `[{"id": "sb-x", "created_at": "1970-01-01T00:00:00.5Z"}]`)
			return
		}
		fmt.Fprint(w, "["+own+","+other+"]")
	}
	if resp, body := get(t, "GET", url+"/v1/sandboxes", "token", "", nil); body != "["+own+"]\n" {
		t.Errorf("the list has foreign sandboxes: %s %s", resp.Status, body)
	}
	f.take()
	f.list = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) }
	resp, _ := get(t, "GET", url+"/v1/sandboxes?partial=true", "", "", nil)
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a token: %s", resp.Status)
	}
	for _, query := range []string{"cursor=%25", "cursor=" + strings.Repeat("a", 1000), "limit=0", "limit=1e9",
		"limit=99999999999999999999", "partial=maybe"} {
		f.take()
		resp, body := get(t, "GET", url+"/v1/sandboxes?"+query, "token", "", nil)
		if resp.StatusCode != http.StatusBadRequest || len(f.take()) > 0 {
			t.Errorf("%.40s: %s %.200s", query, resp.Status, body)
		}
	}
}

func TestFileOfNodes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nodes.json")
	node := func(name, url string) string { return fmt.Sprintf(`{"name": %q, "url": %q}`, name, url) }
	for text, want := range map[string]string{
		`{"nodes": []}`: "want one object", `[]`: "cannot unmarshal", `{"nodes": [{"nam": "a"}]}`: "unknown field",
		`{"nodes": [` + node("A", "http://x:1") + `]}`:                                  "want 1 to 253",
		`{"nodes": [` + node("a", "http://x:1") + `,` + node("a", "http://y:1") + `]}`:  "rename it",
		`{"nodes": [` + node("a", "ftp://x") + `]}`:                                     "url: want",
		`{"nodes": [` + node("a", "http://user:password@x:1") + `]}`:                    "url: want",
		`{"nodes": [` + node("a", "http://x:1/path") + `]}`:                             "url: want",
		`{"nodes": [` + node("a", "http://x:1") + `]} {}`:                               "want one object",
		`{"nodes": [{"name": "a", "url": "https://x:1", "ca": "/dev/null"}]}`:           "no certificate",
		`{"nodes": [` + node("a", "http://x:1") + `,` + node("b", "https://x:2") + `]}`: "",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := New(Config{File: path, Log: slog.New(slog.DiscardHandler)})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// If clients of other hosts reach a router, each of its nodes must have a token, because a node
// without one executes the requests of every client. This is also checked when the list changes
// later.
func TestPublicRouterNeedsTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nodes.json")
	write := func(tokenFile string) {
		t.Helper()
		text, err := json.Marshal(file{[]entry{{Name: "a", URL: "http://127.0.0.1:1", TokenFile: tokenFile}}})
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write("")
	c := Config{File: path, Public: true, Log: slog.New(slog.DiscardHandler)}
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "no token_file") {
		t.Errorf("without a token: %v", err)
	}
	write("token")
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	write("")
	if err := r.readNodes(); err == nil || r.list()[0].TokenFile != "token" {
		t.Errorf("a later list without a token: %v, %+v", err, r.list()[0].entry)
	}
}
