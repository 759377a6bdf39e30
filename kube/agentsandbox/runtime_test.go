package agentsandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"
)

// Paths of clients stay below the base directory.
func TestAt(t *testing.T) {
	b := &box{base: "/app"}
	for in, want := range map[string]string{
		"": "/app", "/": "/app", ".": "/app", "a": "/app/a", "/a": "/app/a", "//etc/passwd": "/app/etc/passwd",
		"a/../b": "/app/b", "a//b/": "/app/a/b", "...": "/app/...", "..a": "/app/..a",
	} {
		got, err := b.at(in)
		if err != nil || got != want {
			t.Errorf("%q is %q, %v: want %q", in, got, err, want)
		}
	}
	for in, status := range map[string]int{"..": 403, "/..": 403, "../app2/x": 403, "a/../../etc": 403, "a\x00b": 400} {
		var e *clientError
		if got, err := b.at(in); !errors.As(err, &e) || e.status != status {
			t.Errorf("%q is %q, %v: want the status %d", in, got, err, status)
		}
	}
	root := &box{base: "/"}
	if got, err := root.at("../etc"); err != nil || got != "/etc" {
		t.Errorf("%q, %v", got, err)
	}
}

// Output of every kind becomes a JSON string that is written in parts. Only bytes that are no UTF-8
// change.
func TestWriteText(t *testing.T) {
	long := strings.Repeat("ä", 40_000)
	for _, in := range []string{"", "a", "\x00\x1f\"\\\n<>&", long, "x" + long,
		strings.Repeat("\xff", 70_000), strings.Repeat("\x80", 70_000), strings.Repeat("😀", 20_000) + "\xf0\x9f"} {
		var out bytes.Buffer
		if err := writeText(&out, `{"a":`, []byte(in)); err != nil {
			t.Fatal(err)
		}
		var got struct{ A string }
		if err := json.Unmarshal(append(out.Bytes(), '}'), &got); err != nil {
			t.Fatalf("%.20q: %v", in, err)
		}
		want := in
		if !utf8.ValidString(in) {
			text, _ := json.Marshal(in)
			_ = json.Unmarshal(text, &want)
		}
		if got.A != want {
			t.Errorf("%.20q became %.20q", in, got.A)
		}
	}
}

func TestCapped(t *testing.T) {
	var c capped
	for range 3 {
		if n, err := c.Write(make([]byte, maxOutput/2+1)); n != maxOutput/2+1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if c.Len() != maxOutput || !c.more {
		t.Errorf("%d, %v", c.Len(), c.more)
	}
}

// One namespace cannot take all requests.
func TestEnter(t *testing.T) {
	r := &Router{active: map[string]int{}}
	for i := range maxNamespace + 1 {
		if ok := r.enter("a"); ok != (i < maxNamespace) {
			t.Fatalf("request %d: %v", i, ok)
		}
	}
	if !r.enter("b") {
		t.Error("another namespace has no room")
	}
	r.leave("a")
	if !r.enter("a") {
		t.Error("a request that has ended still counts")
	}
	for range maxNamespace {
		r.leave("a")
	}
	r.leave("b")
	if r.total != 0 || len(r.active) != 0 {
		t.Errorf("%d, %v", r.total, r.active)
	}
}

// Without a certificate, the Router serves only loopback addresses.
func TestBind(t *testing.T) {
	for _, bind := range []string{"8080", ":8080", "0.0.0.0:8080", "10.0.0.1:8080", "[::]:8080", "localhost:8080"} {
		if err := (&Config{Bind: bind}).checkBind(); err == nil {
			t.Errorf("%s is accepted", bind)
		}
	}
	for _, bind := range []string{"127.0.0.1:0", "127.1.2.3:80", "[::1]:80"} {
		if err := (&Config{Bind: bind}).checkBind(); err != nil {
			t.Errorf("%s: %v", bind, err)
		}
	}
	if err := (&Config{Bind: "127.0.0.1:0", Cert: "a"}).checkBind(); err == nil {
		t.Error("a certificate without a key is accepted")
	}
	if err := (&Config{Bind: ":1", Cert: "/nowhere", Key: "/nowhere"}).checkBind(); err == nil {
		t.Error("a missing certificate is accepted")
	}
}

// The headers of a request name a sandbox, and nothing else.
func TestNamed(t *testing.T) {
	for _, c := range []struct {
		headers         map[string]string
		namespace, name string
		bad             bool
	}{
		{map[string]string{"X-Sandbox-ID": "a"}, "default", "a", false},
		{map[string]string{"X-Sandbox-ID": "a.b", "X-Sandbox-Namespace": "c", "X-Sandbox-Port": "8888"}, "c", "a.b", false},
		{map[string]string{}, "", "", true},
		{map[string]string{"X-Sandbox-ID": "a/b"}, "", "", true},
		{map[string]string{"X-Sandbox-ID": "a", "X-Sandbox-Namespace": "c.d"}, "", "", true},
		{map[string]string{"X-Sandbox-ID": "a", "X-Sandbox-Port": "80"}, "", "", true},
		{map[string]string{"X-Sandbox-ID": "a", "X-Sandbox-Pod-IP": "10.0.0.1"}, "", "", true},
	} {
		req := &http.Request{Header: http.Header{}}
		for name, value := range c.headers {
			req.Header.Set(name, value)
		}
		namespace, name, text := named(req)
		if namespace != c.namespace || name != c.name || (text != "") != c.bad {
			t.Errorf("%v: %q, %q, %q", c.headers, namespace, name, text)
		}
	}
}
