package stack

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/net/nettest"
	"github.com/forkd/forkd/internal/net/policy"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// makeHold parses an answer and the names of hosts, separated by spaces.
func makeHold(t testing.TB, text string) netproto.Hold {
	t.Helper()
	if text == "" {
		return netproto.Hold{}
	}
	words := strings.Fields(text)
	h, err := netproto.ParseHold(words[1:], words[0])
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// newHeld returns a vault that holds requests to api.example, and the site api.example at ports 443
// and 80.
func newHeld(t testing.TB, rules, answer string) (*vault, *site) {
	t.Helper()
	v := newVault(t, rules)
	s := serveSite(t, v.world, web+":443", v.roots.config(t, "api.example", "other.example"))
	plain := &http.Server{Handler: http.HandlerFunc(s.serve)}
	l := v.world.Listen(t, web+":80")
	go func() { _ = plain.Serve(l) }()
	t.Cleanup(func() { _ = plain.Close() })
	v.hold(t, answer+" api.example")
	v.lookup(t, "api.example", false)
	return v, s
}

// hold replaces the hold. An empty text ends it.
func (v *vault) hold(t testing.TB, text string) {
	t.Helper()
	v.SetPolicy(&netproto.SetPolicy{Policy: v.policy, Secrets: v.secrets, Hold: makeHold(t, text)})
}

func post(host, path, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nCookie: c00kie\r\nContent-Length: %d\r\n\r\n%s", path, host, len(body), body)
}

// both makes two connections to api.example, one with TLS and one without.
func (v *vault) both(t testing.TB) map[string]net.Conn {
	t.Helper()
	plain, err := v.dial(t, web+":80")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plain.Close() })
	_ = plain.SetDeadline(time.Now().Add(20 * time.Second))
	return map[string]net.Conn{"https": v.mustDialTLS(t, web+":443", "api.example"), "http": plain}
}

// A held host receives only requests without effects. All other requests are listed.
func TestEffectsAreHeld(t *testing.T) {
	for answer, want := range map[string]int{"refuse": http.StatusForbidden, "record": http.StatusAccepted} {
		for _, policy := range []string{"public", "allow api.example"} {
			t.Run(answer+" "+policy, func(t *testing.T) { testEffectsAreHeld(t, policy, answer, want) })
		}
	}
}

func testEffectsAreHeld(t *testing.T, policy, answer string, want int) {
	v, s := newHeld(t, policy, answer)
	if m := v.Effects(); len(m.List) != 0 || m.Since == 0 {
		t.Errorf("at first: %+v", m)
	}
	outcome := map[string]string{"refuse": "refused", "record": "recorded"}[answer]
	id := uint64(0)
	for scheme, c := range v.both(t) {
		if status, text := ask(t, c, get("api.example", "/a")); status != 200 || !strings.HasSuffix(text, "hello") {
			t.Errorf("%s: GET: %d %q", scheme, status, text)
		}
		if got := s.heard(); len(got) != 1 || !strings.HasPrefix(got[0], "GET api.example /a") {
			t.Errorf("%s: the server heard %q", scheme, got)
		}
		status, text := ask(t, c, post("api.example", "/pay?n=1", "body"))
		if status != want || !strings.Contains(text, "Forkd-Held: "+outcome) || !strings.Contains(text, "forkd") {
			t.Errorf("%s: POST: %d %q, want %d", scheme, status, text, want)
		}
		if status, _ := ask(t, c, "DELETE /x HTTP/1.1\r\nHost: api.example\r\n\r\n"); status != want {
			t.Errorf("%s: DELETE: %d, want %d", scheme, status, want)
		}
		if got := s.heard(); len(got) != 0 {
			t.Errorf("%s: the server heard %q", scheme, got)
		}
		m := v.Effects()
		if len(m.List) != int(id)+2 {
			t.Fatalf("%s: %+v", scheme, m.List)
		}
		e := m.List[id]
		if id += 2; e.ID != id-1 || e.Method != "POST" || e.URL != scheme+"://api.example/pay?n=1" ||
			string(e.Body) != "body" || e.Outcome != outcome || e.Truncated || strings.Contains(fmt.Sprint(e), "c00kie") ||
			!strings.Contains(fmt.Sprint(e.Headers), "Cookie: [hidden]") {
			t.Errorf("%+v", e)
		}
	}
}

// A request waits until the hold ends. Then it goes to the server unchanged.
func TestEffectsWait(t *testing.T) {
	v, s := newHeld(t, "public", "wait")
	conns := v.both(t)
	body := strings.Repeat("x", 3*netproto.MaxEffectBody)
	for _, c := range conns {
		go func() { _, _ = io.WriteString(c, post("api.example", "/pay", body)) }()
	}
	gone := v.mustDialTLS(t, web+":443", "api.example")
	_, _ = io.WriteString(gone, post("api.example", "/gone", "b"))
	outcomes := func() (all string) {
		for _, e := range v.Effects().List {
			all += e.Outcome + " "
		}
		return all
	}
	waitFor(t, "all requests wait", func() bool { return outcomes() == "waiting waiting waiting " })
	for _, e := range v.Effects().List {
		if e.URL != "https://api.example/gone" && (!e.Truncated || len(e.Body) != netproto.MaxEffectBody) {
			t.Errorf("%d bytes, %v", len(e.Body), e.Truncated)
		}
	}
	_ = gone.Close()
	waitFor(t, "one gives up", func() bool { return strings.Contains(outcomes(), "given_up") })
	if got := s.heard(); len(got) != 0 {
		t.Errorf("before the release the server heard %q", got)
	}
	v.hold(t, "")
	for scheme, c := range conns {
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != 200 {
			t.Errorf("%s: %v %v", scheme, resp, err)
		}
	}
	got := s.heard()
	if len(got) != 2 || !strings.HasPrefix(got[0], "POST api.example /pay") || !strings.HasSuffix(got[0], " "+body) ||
		!strings.HasSuffix(got[1], " "+body) || strings.Count(outcomes(), "sent") != 2 {
		t.Errorf("after the release the server heard %d requests, %s", len(got), outcomes())
	}
	if !strings.Contains(strings.Join(got, ""), "s3cr3t") {
		t.Error("the secret was not added")
	}
	if status, _ := ask(t, v.mustDialTLS(t, web+":443", "api.example"), post("api.example", "/", "b")); status != 200 {
		t.Errorf("after the release a new request: %d", status)
	}
}

// A request whose guest has gone is not sent, because the guest may have repeated it. The same is
// true if its body was not read yet, or if another request follows it.
func TestAWaitingRequestWhoseGuestHasGone(t *testing.T) {
	v, s := newHeld(t, "public", "wait")
	gone := func(n int) bool {
		given := 0
		for _, e := range v.Effects().List {
			if e.Outcome == netproto.OutcomeGivenUp {
				given++
			}
		}
		return given == n
	}
	requests := []string{post("api.example", "/", strings.Repeat("x", 2*netproto.MaxEffectBody)),
		post("api.example", "/", "b") + get("api.example", "/fine")}
	for _, request := range requests {
		for _, c := range v.both(t) {
			before := len(v.Effects().List)
			_, _ = io.WriteString(c, request)
			waitFor(t, "it waits", func() bool { return len(v.Effects().List) == before+1 })
			_ = c.Close()
		}
	}
	waitFor(t, "all have given up", func() bool { return gone(4) })
	late := v.mustDialTLS(t, web+":443", "api.example")
	_, _ = io.WriteString(late, requests[0])
	waitFor(t, "it waits", func() bool { return len(v.Effects().List) == 5 })
	_ = late.Close()
	time.Sleep(100 * time.Millisecond) // shorter than the interval at which the stack checks the connection
	v.hold(t, "")
	waitFor(t, "it has given up", func() bool { return gone(5) })
	if got := s.heard(); len(got) != 0 {
		t.Errorf("the server heard %.100q", got)
	}
}

// A new hold resets connections that were forwarded unread. Requests that wait under the previous
// hold are not sent.
func TestANewHoldResets(t *testing.T) {
	v, s := newHeld(t, "allow api.example", "wait")
	v.hold(t, "")
	v.SetPolicy(&netproto.SetPolicy{Policy: v.policy})
	c := v.mustDialTLS(t, web+":443", "api.example", v.roots) // not read, because there is neither a hold nor a secret
	if status, _ := ask(t, c, post("api.example", "/", "b")); status != 200 {
		t.Fatal(status)
	}
	s.heard()
	v.hold(t, "wait api.example")
	if _, err := c.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("a connection outlives a new hold: %v", err)
	}
	c = v.mustDialTLS(t, web+":443", "api.example")
	_, _ = io.WriteString(c, post("api.example", "/", "b"))
	waitFor(t, "it waits", func() bool { return len(v.Effects().List) == 1 })
	v.hold(t, "refuse api.example")
	if _, err := c.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("a waiting connection outlives its hold: %v", err)
	}
	waitFor(t, "it has given up", func() bool { return v.Effects().List[0].Outcome == netproto.OutcomeGivenUp })
	if got := s.heard(); len(got) != 0 {
		t.Errorf("the server heard %q", got)
	}
}

// TestAttackHeldRequest sends a request with effects in forms that some servers accept, but in which
// forkd-net could overlook it.
func TestAttackHeldRequest(t *testing.T) {
	v, s := newHeld(t, "public", "record")
	const head = "POST /evil HTTP/1.1\r\nHost: api.example\r\n"
	for name, request := range map[string]string{
		"HTTP/1.0":            "POST /evil HTTP/1.0\r\nHost: api.example\r\nContent-Length: 1\r\n\r\nx",
		"HTTP/1.0, no host":   "POST /evil HTTP/1.0\r\nContent-Length: 1\r\n\r\nx",
		"HTTP/0.9":            "POST /evil\r\n\r\n",
		"chunked":             head + "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
		"chunk extension":     head + "Transfer-Encoding: chunked\r\n\r\n1;a=\"\r\n\r\nPOST /evil HTTP/1.1\"\r\nx\r\n0\r\n\r\n",
		"odd chunked":         head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"two lengths":         head + "Content-Length: 0\r\nContent-Length: 1\r\n\r\nx",
		"length and chunks":   head + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"space before colon":  head + "Content-Length : 1\r\n\r\nx",
		"GET with a body":     "GET /evil HTTP/1.1\r\nHost: api.example\r\nContent-Length: 1\r\n\r\nx",
		"GET with chunks":     "GET /evil HTTP/1.1\r\nHost: api.example\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
		"lower case":          "post /evil HTTP/1.1\r\nHost: api.example\r\nContent-Length: 1\r\n\r\nx",
		"get in lower case":   "get /evil HTTP/1.1\r\nHost: api.example\r\n\r\n",
		"unknown method":      "PAY /evil HTTP/1.1\r\nHost: api.example\r\n\r\n",
		"override":            "GET /evil HTTP/1.1\r\nHost: api.example\r\nX-HTTP-Method-Override: POST\r\n\r\n",
		"override, other":     "GET /evil HTTP/1.1\r\nHost: api.example\r\nX_Method_Override: DELETE\r\n\r\n",
		"websocket":           "GET /evil HTTP/1.1\r\nHost: api.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"upgrade to HTTP/2":   "GET /evil HTTP/1.1\r\nHost: api.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n",
		"HTTP/2":              "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		"CONNECT":             "CONNECT api.example:443 HTTP/1.1\r\nHost: api.example\r\n\r\n",
		"absolute URI":        "POST https://api.example/evil HTTP/1.1\r\nHost: api.example\r\nContent-Length: 1\r\n\r\nx",
		"absolute, other":     "POST https://api.example/evil HTTP/1.1\r\nHost: other.example\r\nContent-Length: 1\r\n\r\nx",
		"other host":          post("other.example", "/evil", "x"),
		"two hosts":           "POST /evil HTTP/1.1\r\nHost: other.example\r\nHost: api.example\r\nContent-Length: 1\r\n\r\nx",
		"trailing dot":        post("api.example.", "/evil", "x"),
		"another port":        post("api.example:8443", "/evil", "x"),
		"pipelined":           get("api.example", "/fine") + post("api.example", "/evil", "x"),
		"hidden in a body":    "GET /fine HTTP/1.1\r\nHost: api.example\r\nContent-Length: 0\r\n\r\n" + post("api.example", "/evil", "x"),
		"expect":              head + "Expect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
		"connection: content": head + "Connection: content-length\r\nContent-Length: 1\r\n\r\nx",
		"folded":              "GET /fine HTTP/1.1\r\nHost: api.example\r\nX: a\r\n X-HTTP-Method: POST\r\n\r\n",
		"bare line feeds":     "POST /evil HTTP/1.1\nHost: api.example\nContent-Length: 1\n\nx",
	} {
		for scheme, c := range v.both(t) {
			_, _ = io.WriteString(c, request)
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			in := bufio.NewReader(c)
			for { // to the end, or until the server waits for more
				resp, err := http.ReadResponse(in, nil)
				if err != nil || resp.StatusCode == http.StatusAccepted || resp.StatusCode >= 400 {
					break
				}
				_, _ = io.Copy(io.Discard, resp.Body)
			}
			_ = c.Close()
			for _, got := range s.heard() {
				if !strings.HasPrefix(got, "GET api.example /fine ") {
					t.Errorf("%s over %s: the server heard %s", name, scheme, got)
				}
			}
		}
	}
}

// TestAttackHeldElsewhere tries to reach a held host in ways in which forkd-net cannot read the
// requests.
func TestAttackHeldElsewhere(t *testing.T) {
	v, s := newHeld(t, "public", "refuse")
	v.zone.set("other.example", web)
	v.lookup(t, "other.example", false)
	nettest.Serve(v.world.Listen(t, web+":8443"), echo)
	for name, try := range map[string]func() error{
		"another name at its address": func() error {
			_, err := v.dialTLS(t, web+":443", "other.example", v.roots)
			return err
		},
		"no name": func() error {
			c, err := v.dial(t, web+":443")
			if err != nil {
				return err
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			return tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Handshake()
		},
		"another port": func() error { _, err := v.says(t, web+":8443", "hello"); return err },
		"plain, another name": func() error {
			_, err := v.says(t, web+":80", post("other.example", "/", "x"))
			return err
		},
		"plain, two names": func() error {
			_, err := v.says(t, web+":80", "POST http://api.example/ HTTP/1.1\r\nHost: other.example\r\nContent-Length: 0\r\n\r\n")
			return err
		},
		"plain HTTP/2": func() error { _, err := v.says(t, web+":80", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); return err },
	} {
		before := v.count(heldHost)
		if err := try(); err == nil {
			t.Errorf("%s: got through", name)
		}
		t.Log(name)
		v.mustCount(t, heldHost, before+1)
	}
	if _, err := v.dialTLS(t, web2+":443", "api.example", v.roots); err == nil {
		t.Error("an address that DNS gave for nothing got through")
	}
	if got := s.heard(); len(got) != 0 {
		t.Errorf("the server heard %q", got)
	}
}

// The list of a sandbox is bounded. A request that is not listed is refused.
func TestEffectsAreBounded(t *testing.T) {
	v, s := newHeld(t, "public", "record")
	c := v.mustDialTLS(t, web+":443", "api.example")
	refused := 0
	big := strings.Repeat("x", netproto.MaxEffectBody)
	for range 40 {
		switch status, _ := ask(t, c, post("api.example", "/"+big[:100], big)); status {
		case http.StatusServiceUnavailable:
			refused++
		case http.StatusAccepted:
		default:
			t.Fatal(status)
		}
	}
	m := v.Effects()
	if refused == 0 || len(m.List) != 40-refused || m.Missed != uint64(refused) ||
		v.host.effects.used.Load() > netproto.MaxEffectBytes {
		t.Errorf("%d refused, %d listed, %d missed", refused, len(m.List), m.Missed)
	}
	v.host.effects.most = v.host.effects.used.Load() // no room in this process
	if status, _ := ask(t, c, "DELETE / HTTP/1.1\r\nHost: api.example\r\n\r\n"); status != http.StatusServiceUnavailable {
		t.Error(status)
	}
	v.Close()
	if n := v.host.effects.used.Load(); n != 0 {
		t.Errorf("%d bytes are not given back", n)
	}
	if got := s.heard(); len(got) != 0 {
		t.Errorf("the server heard %q", got)
	}
}

// A connection is not listed as allowed if all its requests were held. It is listed if a request
// reached the server.
func TestHeldConnectionsAreNotAllowed(t *testing.T) {
	v, _ := newHeld(t, "public", "refuse")
	conns := v.both(t)
	for _, c := range conns {
		if status, _ := ask(t, c, post("api.example", "/", "b")); status != http.StatusForbidden {
			t.Error(status)
		}
	}
	if list := v.Flows(); len(list) != 0 {
		t.Errorf("open and allowed: %+v", list)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	waitFor(t, "the connections end", func() bool { return v.count(heldRequests) == 2 })
	if m := v.counters.Stats(); len(m.Passed) != 0 || len(m.Recent) != 2 || m.Recent[0].Fix == "" {
		t.Errorf("allowed: %+v; refused: %+v", m.Passed, m.Recent)
	}
	for _, c := range v.both(t) {
		if status, _ := ask(t, c, get("api.example", "/")); status != http.StatusOK {
			t.Error(status)
		}
		if list := v.Flows(); len(list) == 0 {
			t.Error("a connection that has reached the server is not listed")
		}
		_ = c.Close()
	}
	waitFor(t, "the connections end", func() bool { return len(v.counters.Stats().Passed) == 2 })
	if n := v.count(heldRequests); n != 2 {
		t.Errorf("%d connections count as held", n)
	}
}

// A request that waits keeps only the buffers of its connection, however long its body is. The
// buffers count against the sandbox's limit until the connection ends.
func TestAWaitingRequestIsBounded(t *testing.T) {
	v, s := newHeld(t, "public", "wait")
	v.roomy.most, v.grown.most = normalBuffers.bytes(), normalBuffers.bytes() // room for one connection
	body := strings.Repeat("x", 4<<20)
	conns := v.both(t)
	for _, c := range conns {
		go func() { _, _ = io.WriteString(c, post("api.example", "/", body)) }()
	}
	waitFor(t, "both wait", func() bool { return len(v.Effects().List) == 2 })
	if n := v.grown.used.Load(); n != normalBuffers.bytes() {
		t.Errorf("%d bytes are counted for the buffers of a waiting request", n)
	}
	v.hold(t, "")
	for scheme, c := range conns {
		if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != 200 {
			t.Errorf("%s: %v %v", scheme, resp, err)
		}
		_ = c.Close()
	}
	if got := s.heard(); len(got) != 2 || !strings.HasSuffix(got[0], body) {
		t.Errorf("the server heard %d requests", len(got))
	}
	waitFor(t, "the room is given back", func() bool { return v.grown.used.Load() == 0 })
}

// If the policy denies a server, a connection cannot reach it by sending the server's name late.
func TestAttackLateName(t *testing.T) {
	v, s := newHeld(t, "public !evil.example", "refuse")
	v.hold(t, "")
	for name, first := range map[string]string{"silence": "", "a part of the method": "PO"} {
		c, err := v.dial(t, web+":80")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, first)
		_ = c.SetReadDeadline(time.Now().Add(4 * peekTime))
		if _, err := c.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s: %v", name, err)
		}
	}
	v.mustCount(t, string(policy.Unclear), 2)
	if got := s.heard(); len(got) != 0 {
		t.Errorf("the server heard %q", got)
	}
}
