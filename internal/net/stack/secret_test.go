package stack

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/forkd/forkd/internal/net/nettest"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// The secret of the tests, and the placeholder that the guest sends instead.
const (
	secretValue = "Bearer s3cr3t"
	placeholder = "Bearer placeholder"
)

// The secret replaces the placeholder in every request of a connection. The guest does not see the
// secret.
func TestSecretIsAdded(t *testing.T) {
	for _, policy := range []string{"public", "allow api.example"} {
		t.Run(policy, func(t *testing.T) { testSecretIsAdded(t, policy) })
	}
}

func testSecretIsAdded(t *testing.T, policy string) {
	v := newVault(t, policy)
	s := serveSite(t, v.world, web+":443", v.roots.config(t, "api.example"))
	v.lookup(t, "api.example", false)
	c := v.mustDialTLS(t, web+":443", "api.example")
	for _, request := range []string{
		get("api.example", "/a?b=c;d"), get("API.example:443", "/"),
		"POST /p HTTP/1.1\r\nHost: api.example\r\nContent-Length: 4\r\n\r\nbody",
		"PUT /p HTTP/1.1\r\nHost: api.example\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
	} {
		if status, answer := ask(t, c, request); status != 200 || !strings.HasSuffix(answer, "hello") ||
			strings.Contains(answer, "s3cr3t") {
			t.Errorf("%q: %d, %q", request, status, answer)
		}
	}
	want := fmt.Sprintf("[GET api.example /a?b=c;d [%[1]q]  GET api.example / [%[1]q]  POST api.example /p [%[1]q] body PUT api.example /p [%[1]q] body]", secretValue)
	if got := fmt.Sprint(s.heard()); got != want {
		t.Errorf("the server heard %s, want %s", got, want)
	}
	_ = c.Close()
	v.clean(t, `"name":"api.example"`)
	waitFor(t, "the flow ends", func() bool { return v.counters.Open.Load() == 0 })
	if m := v.counters.Stats(); m.UpBytes == 0 || m.DownBytes == 0 || m.Connections != 1 {
		t.Errorf("%+v", m)
	}
}

// The server's answer may begin before the guest has sent the end of its request.
func TestEarlyAnswerWhereASecretIsAdded(t *testing.T) {
	v := newVault(t, "public")
	server := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		rc := http.NewResponseController(w)
		if err := rc.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(w, "begin ")
		_ = rc.Flush()
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %v", body, err)
	})}
	listener := tls.NewListener(v.world.Listen(t, web+":443"), v.roots.config(t, "api.example"))
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	v.lookup(t, "api.example", false)
	c := v.mustDialTLS(t, web+":443", "api.example")
	fmt.Fprint(c, "POST /p HTTP/1.1\r\nHost: api.example\r\nContent-Length: 12\r\n\r\nfirst ")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, len("begin "))); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, "second")
	if rest, err := io.ReadAll(resp.Body); string(rest) != "first second <nil>" || err != nil {
		t.Errorf("%q, %v", rest, err)
	}
}

// TestAttackSecretForeignServer connects to another server, and names the host of a secret. Only a
// server with a certificate for this host receives a request.
func TestAttackSecretForeignServer(t *testing.T) {
	v := newVault(t, "public")
	s := serveSite(t, v.world, web2+":443", newSigner(t).config(t, "api.example"))
	if _, err := v.dialTLS(t, web2+":443", "api.example"); err == nil {
		t.Error("an address that DNS gave for nothing got through")
	}
	v.mustCount(t, "name-address", 1)
	v.zone.set("api.example", web2)
	v.lookup(t, "api.example", false)
	c := v.mustDialTLS(t, web2+":443", "api.example")
	status, answer := ask(t, c, get("api.example", "/"))
	_ = c.Close()
	if status != http.StatusBadGateway || !strings.Contains(answer, "x509") || strings.Contains(answer, "s3cr3t") {
		t.Errorf("%d, %q", status, answer)
	}
	if got := s.heard(); len(got) > 0 {
		t.Errorf("the server heard %q", got)
	}
	v.clean(t, "x509")
}

// TestAttackSecretOtherHost connects to the host of a secret, and names another host in its
// requests, in each form that some server might accept.
func TestAttackSecretOtherHost(t *testing.T) {
	v := newVault(t, "public")
	s := serveSite(t, v.world, web+":443", v.roots.config(t, "api.example", "other.example"))
	v.lookup(t, "api.example", false)
	for request, want := range map[string]int{
		get("other.example", "/"):                    http.StatusMisdirectedRequest,
		get("api.example.other.example", "/"):        http.StatusMisdirectedRequest,
		get("api.example:8443", "/"):                 http.StatusMisdirectedRequest,
		get("", "/"):                                 http.StatusMisdirectedRequest,
		"GET / HTTP/1.0\r\n\r\n":                     http.StatusMisdirectedRequest,
		get("api.example", "https://other.example/"): http.StatusBadRequest,
		get("other.example", "https://api.example/"): http.StatusBadRequest,
		get("api.example", "/")[:len(get("api.example", "/"))-2] + "Host: other.example\r\n\r\n": http.StatusBadRequest,
		"CONNECT other.example:443 HTTP/1.1\r\nHost: other.example:443\r\n\r\n":                  http.StatusMethodNotAllowed,
		"TRACE / HTTP/1.1\r\nHost: api.example\r\n\r\n":                                          http.StatusMethodNotAllowed,
	} {
		if status, answer := ask(t, v.mustDialTLS(t, web+":443", "api.example"), request); status != want ||
			strings.Contains(answer, "s3cr3t") {
			t.Errorf("%q: %d, %q", request, status, answer)
		}
	}
	if got := s.heard(); len(got) > 0 {
		t.Errorf("the server heard %q", got)
	}
}

// TestAttackSecretElsewhere checks that every other server receives only the placeholder. This
// holds even after a redirect from the host of the secret, and for another name at the same
// address.
func TestAttackSecretElsewhere(t *testing.T) {
	v := newVault(t, "public")
	s := serveSite(t, v.world, web+":443", v.roots.config(t, "api.example", "other.example"))
	v.lookup(t, "api.example", false)
	v.lookup(t, "other.example", false)
	status, answer := ask(t, v.mustDialTLS(t, web+":443", "api.example"), get("api.example", "/redirect"))
	if status != http.StatusFound || !strings.Contains(answer, "Location: https://other.example/") {
		t.Errorf("%d, %q", status, answer)
	}
	s.heard()
	for _, host := range []string{"other.example", "api.example"} { // Host headers, both sent over TLS to other.example
		c := v.mustDialTLS(t, web+":443", "other.example", v.roots)
		if status, answer := ask(t, c, get(host, "/")); status != 200 {
			t.Errorf("%d, %q", status, answer)
		}
	}
	nettest.Serve(v.world.Listen(t, web+":80"), echo) // without TLS
	if got, err := v.says(t, web+":80", get("api.example", "/")); err != nil || strings.Contains(got, "s3cr3t") {
		t.Errorf("%q, %v", got, err)
	}
	for _, got := range s.heard() {
		if !strings.Contains(got, placeholder) || strings.Contains(got, "s3cr3t") {
			t.Errorf("another server heard %s", got)
		}
	}
}

// TestAttackSecretSmuggling sends requests that servers could interpret differently, in order to
// remove the header or to send two requests. The server receives one request, with the secret.
func TestAttackSecretSmuggling(t *testing.T) {
	v := newVault(t, "public")
	s := serveSite(t, v.world, web+":443", v.roots.config(t, "api.example"))
	v.lookup(t, "api.example", false)
	const head = "POST / HTTP/1.1\r\nHost: api.example\r\n"
	for _, request := range []string{
		head + "Content-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: other.example\r\n\r\n",
		head + "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
		head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		head + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		head + "Connection: authorization, keep-alive\r\nContent-Length: 0\r\n\r\n",
		head + "Authorization: a\r\nauthorization: b\r\nAUTHORIZATION: c\r\nContent-Length: 0\r\n\r\n",
		head + "Trailer: Authorization\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nAuthorization: a\r\n\r\n",
		head + "X: a\r\n Authorization: b\r\nContent-Length: 0\r\n\r\n",
		head + "X: a\nAuthorization: b\r\nContent-Length: 0\r\n\r\n",
	} {
		c := v.mustDialTLS(t, web+":443", "api.example")
		if _, answer := ask(t, c, request); strings.Contains(answer, "s3cr3t") {
			t.Errorf("%q is answered %q", request, answer)
		}
		_ = c.Close()
		for _, got := range s.heard() {
			if !strings.HasPrefix(got, fmt.Sprintf("POST api.example / [%q]", secretValue)) {
				t.Errorf("%q: the server heard %s", request, got)
			}
		}
	}
}

// TestAttackSecretPolicy checks that a secret permits no connection that the policy denies.
func TestAttackSecretPolicy(t *testing.T) {
	v := newVault(t, "public")
	serveSite(t, v.world, web+":443", v.roots.config(t, "api.example"))
	s := serveSite(t, v.world, private+":443", v.roots.config(t, "api.example"))
	v.lookup(t, "api.example", false)
	v.zone.set("api.example", private)
	v.lookup(t, "api.example", false)
	if _, err := v.dialTLS(t, private+":443", "api.example"); err == nil {
		t.Error("a private address is open to a secret")
	}
	v.mustCount(t, "private", 1)
	for policy, reason := range map[string]string{"none": "mode-none", "allow other.example": "no-rule",
		"public !api.example": "deny-rule"} {
		v.SetPolicy(&netproto.SetPolicy{Policy: makePolicy(t, policy), Secrets: v.secrets})
		before := v.count(reason)
		if _, err := v.dialTLS(t, web+":443", "api.example"); err == nil {
			t.Errorf("%s: got through", policy)
		}
		v.mustCount(t, reason, before+1)
	}
	if got := s.heard(); len(got) > 0 {
		t.Errorf("the server heard %q", got)
	}
}

// TestAttackSecretInErrors connects to a server whose answers have the secret in texts that may
// appear in errors. The guest receives the same answer as any client of that server, but no log
// contains the secret.
func TestAttackSecretInErrors(t *testing.T) {
	v := newVault(t, "public")
	l := tls.NewListener(v.world.Listen(t, web+":443"), v.roots.config(t, "api.example"))
	nettest.Serve(l, func(c net.Conn) {
		if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, r.Header.Get("Authorization")+" is no answer\r\n\r\n")
		}
		_ = c.Close()
	})
	v.lookup(t, "api.example", false)
	c := v.mustDialTLS(t, web+":443", "api.example")
	if status, answer := ask(t, c, get("api.example", "/")); status != http.StatusBadGateway ||
		strings.Contains(answer, "s3cr3t") {
		t.Errorf("%d, %q", status, answer)
	}
	_ = c.Close()
	v.clean(t, `"name":"api.example"`)
}

// Without root certificates, connections to the host of a secret are refused. If a secret changes,
// connections that use the old value are reset. The number of connections to which secrets are
// added is bounded.
func TestSecretsAreBounded(t *testing.T) {
	v := newVault(t, "public")
	v.host.injects.most = 2 * maxInjected * injectBytes // one sandbox may use half of the room
	serveSite(t, v.world, web+":443", v.roots.config(t, "api.example"))
	v.lookup(t, "api.example", false)
	first := v.mustDialTLS(t, web+":443", "api.example")
	v.SetPolicy(&netproto.SetPolicy{Policy: v.policy, Secrets: []netproto.Secret{{Host: "api.example", Header: "X",
		Value: "y"}}})
	if _, err := first.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("a connection outlives its secret: %v", err)
	}
	waitFor(t, "it is gone", func() bool { return v.counters.Open.Load() == 0 })
	for range maxInjected {
		v.mustDialTLS(t, web+":443", "api.example")
	}
	if _, err := v.dialTLS(t, web+":443", "api.example"); err == nil {
		t.Errorf("there are more than %d connections", maxInjected)
	}
	v.mustCount(t, tooManySecret, 1)
	v.host.SetTrust(nil)
	if _, err := v.dialTLS(t, web+":443", "api.example"); err == nil {
		t.Error("got through without trust")
	}
	v.mustCount(t, noTrust, 1)
}

// An answer with very many headers is refused before it is parsed, even if it is the second answer
// on its connection.
func TestAttackManyHeadersWhereASecretIsAdded(t *testing.T) {
	v := newVault(t, "public")
	config, asked := v.roots.config(t, "api.example"), atomic.Bool{}
	nettest.Serve(v.world.Listen(t, web+":443"), func(c net.Conn) {
		s := tls.Server(c, config)
		in := bufio.NewReader(s)
		for {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			headers := 10
			if asked.Swap(true) {
				headers = 5000
			}
			_, _ = io.WriteString(s, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n"+strings.Repeat("a:\r\n", headers)+"\r\nhello")
		}
	})
	v.lookup(t, "api.example", false)
	c := v.mustDialTLS(t, web+":443", "api.example")
	for _, want := range []int{http.StatusOK, http.StatusBadGateway} {
		if status, answer := ask(t, c, get("api.example", "/")); status != want {
			t.Errorf("%d %q, want %d", status, answer, want)
		}
	}
	many := v.mustDialTLS(t, web+":443", "api.example")
	long := "GET / HTTP/1.1\r\nHost: api.example\r\n" + strings.Repeat("a:\r\n", 1000) + "\r\n"
	if status, _ := ask(t, many, long); status != http.StatusBadRequest {
		t.Errorf("a request of many headers: %d, want 400", status)
	}
}
