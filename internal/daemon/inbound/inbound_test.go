package inbound

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
)

const seen = "/v1/sandboxes/" + id + "/proxy/80"

// basic returns the encoded form of Basic credentials.
func basic(user, password string) string {
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
}

// A guest receives a client's request without the headers that the guest must not see, or that
// would change the meaning of the request.
func TestWhatTheGuestSees(t *testing.T) {
	var got *http.Request
	guest := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Clone(context.Background()) })
	request := "GET " + seen +
		"//a/../b%2fc?x=1;y=%zz&q HTTP/1.1\r\nHost: front.example:99\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Host: evil\r\n" +
		"X-Forwarded-Prefix: /evil\r\nX-Forwarded-Proto: https\r\nForwarded: for=6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\n" +
		"Connection: close, X-Forwarded-Prefix, Keep\r\nKeep: me not\r\nProxy-Authorization: Basic x\r\nCookie: session=daemon\r\n" +
		"X-Own: yes\r\n"
	for _, c := range []struct {
		name          string
		route         Route
		more          string
		authorization string
		apiKey        string
	}{
		{"path, bearer", Route{Prefix: seen}, "Authorization: Bearer " + token + "\r\n", "", ""},
		{"path, another bearer", Route{Prefix: seen}, "authorization: bearer  other\r\n", "", ""},
		{"path, own header", Route{Prefix: seen}, "Forkd-Token: " + token + "\r\nAuthorization: Bearer other\r\n",
			"Bearer other", ""},
		{"path, both", Route{Prefix: seen}, "Forkd-Token: " + token + "\r\nAuthorization: Bearer " + token +
			"\r\nAuthorization: Basic x\r\n", "Basic x", ""},
		{"path, basic", Route{Prefix: seen}, "Authorization: Basic x\r\n", "Basic x", ""},
		{"path, basic with the token", Route{Prefix: seen}, "Authorization: Basic " + basic("x", token) +
			"\r\nAuthorization: basic " + basic(token, "") + "\r\nAuthorization: Basic " + basic("x", "y") + "\r\n",
			"Basic " + basic("x", "y"), ""},
		{"host, open, basic with the token", Route{Open: true}, "Authorization: Basic " + basic("x", token) + "\r\n", "", ""},
		{"host, signed", Route{Signed: true}, "Authorization: Bearer other\r\n", "Bearer other", ""},
		{"host, signed, and the token", Route{Signed: true}, "Authorization: Bearer  " + token + " \r\n", "", ""},
		{"path, API key", Route{Prefix: seen}, "X-API-Key: " + token + "\r\n", "", ""},
		{"path, API keys", Route{Prefix: seen}, "X-API-Key: own\r\nX-API-Key: " + token + "\r\nx-api-key: other\r\n", "",
			"own|other"},
	} {
		r := start(t, guest, Config{}, c.route)
		_, answer := r.raw(t, request+c.more+"\r\n")
		resp, err := http.ReadResponse(answer, nil)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v, %v", c.name, resp, err)
		}
		path, prefix, cookie := "//a/../b%2fc", seen, ""
		if c.route.Prefix == "" {
			path, prefix, cookie = seen+path, "", "session=daemon"
		}
		h := got.Header
		for name, want := range map[string]string{"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": "front.example:99",
			"X-Forwarded-Proto":  "https",
			"X-Forwarded-Prefix": prefix, "Forwarded": "", "X-Real-Ip": "", "Keep": "", "Proxy-Authorization": "",
			"Cookie": cookie, "Forkd-Token": "",
			"X-Own": "yes", "Authorization": c.authorization, "X-Api-Key": c.apiKey} {
			if v := strings.Join(h[name], "|"); v != want {
				t.Errorf("%s: the guest sees %s: %q, want %q", c.name, name, v, want)
			}
		}
		if got.RequestURI != path+"?x=1;y=%zz&q" || got.Host != "front.example:99" {
			t.Errorf("%s: the guest sees %s of %s", c.name, got.RequestURI, got.Host)
		}
		for name, values := range h {
			if strings.Contains(strings.Join(values, "|"), token) {
				t.Errorf("%s: the guest sees the token in %s", c.name, name)
			}
		}
	}
}

// A request with an ambiguous length is refused. So the guest cannot find a second request in the
// body.
func TestNothingIsSmuggled(t *testing.T) {
	requests := make(chan string, 10)
	guest := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		p, _ := io.ReadAll(r.Body)
		requests <- r.Method + " " + r.RequestURI + " " + string(p)
	})
	r := start(t, guest, Config{}, Route{})
	inner := "GET /inner HTTP/1.1\r\nHost: x\r\n\r\n"
	for _, head := range []string{
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 40\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
		"GET /\r\nX: y HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x/y\r\n\r\n",
	} {
		_, answer := r.raw(t, head+inner)
		resp, err := http.ReadResponse(answer, nil)
		if err != nil || resp.StatusCode < 400 {
			t.Errorf("%q: %+v, %v", head, resp, err)
		}
	}
	// If a request has a Content-Length and chunks, the chunks determine the length, as RFC 9112
	// §6.3 requires, and the connection is closed afterwards.
	r.raw(t, "POST /both HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
	if got := <-requests; got != "POST /both abc" {
		t.Errorf("the guest is asked %q", got)
	}
	select {
	case got := <-requests:
		t.Errorf("the guest is asked %q", got)
	default:
	}
}

// If headers of a guest's answer would affect more than the guest's port, they do not reach the
// client.
func TestWhatTheClientSees(t *testing.T) {
	guest := serve(t, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		for _, name := range originWide {
			h.Set(name, "evil")
		}
		h["Set-Cookie"] = []string{"a=1; Domain=example; Path=/p; HttpOnly", "b=2; Secure; SameSite=Lax", "=; =",
			"c=3; Domain=.sandboxes.example"}
		h.Set(ErrorHeader, "true")
		h.Set(apiv1.NodeHeader, "b")
		h.Set("Content-Security-Policy", "default-src *")
		h.Set("Location", "/v1/forks")
		h.Set("X-Own", "yes")
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
	ask := func(route Route) http.Header {
		r := start(t, guest, Config{}, route)
		_, answer := r.raw(t, "GET "+route.Prefix+"/ HTTP/1.1\r\nHost: x\r\n\r\n")
		resp, err := http.ReadResponse(answer, nil)
		if err != nil || resp.StatusCode != http.StatusTemporaryRedirect {
			t.Fatalf("%v, %v", resp, err)
		}
		if h := resp.Header; h.Get("X-Own") != "yes" || h.Get(ErrorHeader) != "" || h.Get(apiv1.NodeHeader) != "" {
			t.Errorf("headers %v", h)
		}
		return resp.Header
	}
	h := ask(Route{Prefix: seen})
	for _, name := range originWide {
		if h.Get(name) != "" {
			t.Errorf("%s passes", name)
		}
	}
	for _, name := range []string{"Accept-CH", "Use-As-Dictionary", "Attribution-Reporting-Register-Source"} {
		if !slices.Contains(originWide, name) {
			t.Errorf("%s passes", name)
		}
	}
	if csp := strings.Join(h["Content-Security-Policy"], "|"); csp != "default-src *|"+sandboxed {
		t.Errorf("Content-Security-Policy: %s", csp)
	}
	if at := h.Get("Location"); at != seen+"/v1/forks" {
		t.Errorf("Location: %s", at)
	}
	h = ask(Route{Signed: true})
	if got := strings.Join(h["Set-Cookie"], "|"); got != "a=1; Path=/p; HttpOnly|b=2; Secure; SameSite=Lax|c=3" {
		t.Errorf("cookies of a host of its own: %s", got)
	}
	if h.Get("Clear-Site-Data") != "" {
		t.Error("Clear-Site-Data of a host of its own passes: it clears cookies of other hosts")
	}
	if h.Get("Location") != "/v1/forks" || h.Get("Referrer-Policy") != "same-origin" || h.Get("Refresh") != "evil" {
		t.Errorf("headers of a host of its own: %v", h)
	}
}

// A guest that does not speak HTTP, or that sends an endless answer, causes an error.
func TestHostileAnswers(t *testing.T) {
	endless := func(head, part string) func(*net.TCPConn) {
		return func(conn *net.TCPConn) {
			bufio.NewReader(conn).ReadString('\n')
			io.WriteString(conn, head)
			for {
				if _, err := io.WriteString(conn, part); err != nil {
					return
				}
			}
		}
	}
	for name, guest := range map[string]func(*net.TCPConn){
		"garbage": says("\x00\xff\r\n\r\n" + strings.Repeat("x", 1000)),
		"nothing": func(conn *net.TCPConn) { bufio.NewReader(conn).ReadString('\n') },
		"reset": func(conn *net.TCPConn) {
			// Read the request first, because an earlier reset would be an error of connecting.
			bufio.NewReader(conn).ReadString('\n')
			conn.SetLinger(0)
		},
		"half a head":          func(conn *net.TCPConn) { io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Le") },
		"endless line":         endless("HTTP/1.1 200 ", "OK OK OK "),
		"endless headers":      endless("HTTP/1.1 200 OK\r\n", "A: b\r\n"),
		"many short headers":   says("HTTP/1.1 200 OK\r\n" + strings.Repeat("a:\r\n", MaxFields+1) + "\r\n"),
		"endless interim":      endless("", "HTTP/1.1 103 Early Hints\r\nSet-Cookie: a=b\r\n\r\n"),
		"two lengths":          says("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
		"negative length":      says("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
		"upgrade nobody asked": says("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
		"unknown coding":       says("HTTP/1.1 200 OK\r\nTransfer-Encoding: evil\r\n\r\n"),
		"status":               says("HTTP/1.1 9999 OK\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, listen(t, guest), Config{}, Route{})
			_, answer := r.raw(t, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			resp, err := http.ReadResponse(answer, nil)
			if err != nil || resp.StatusCode != http.StatusBadGateway || resp.Header.Get("Set-Cookie") != "" {
				t.Fatalf("%+v, %v", resp, err)
			}
			p, _ := io.ReadAll(resp.Body)
			if len(p) > 500 || !strings.Contains(string(p), "no proper HTTP answer") {
				t.Errorf("%s", p)
			}
			var wrong *AnswerError
			if err := r.end(t); !errors.As(err, &wrong) {
				t.Errorf("the stream ended with %v", err)
			}
		})
	}
}

// A request with a body cannot switch protocols while the body is being read.
func TestNoUpgradeWithABody(t *testing.T) {
	r := start(t, listen(t, says("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")),
		Config{}, Route{})
	_, answer := r.raw(t,
		"POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\nContent-Length: 1000\r\n\r\nabc")
	resp, err := http.ReadResponse(answer, nil)
	if err != nil || resp.StatusCode != http.StatusBadGateway || !resp.Close {
		t.Errorf("%+v, %v", resp, err)
	}
}

// If a guest's answer is cut off, the client gets an error and not a complete answer.
func TestABrokenAnswerIsNotWhole(t *testing.T) {
	for name, text := range map[string]string{
		"length": "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart",
		"chunks": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
	} {
		guest := listen(t, func(conn *net.TCPConn) { bufio.NewReader(conn).ReadString('\n'); io.WriteString(conn, text) })
		r := start(t, guest, Config{}, Route{})
		resp, err := http.Get(r.URL)
		if err != nil {
			t.Fatal(err)
		}
		if p, err := io.ReadAll(resp.Body); err == nil || string(p) != "part" {
			t.Errorf("%s: %q, %v", name, p, err)
		}
		resp.Body.Close()
		if r.end(t) == nil {
			t.Errorf("%s: the stream ended well", name)
		}
	}
}

// An idle stream ends. It may be idle because the guest never answers, because the body never
// arrives, or because the upgraded connection is not used.
func TestIdleStreamsEnd(t *testing.T) {
	mute := listen(t, func(conn *net.TCPConn) { io.Copy(io.Discard, conn) })
	upgraded := listen(t, says("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"))
	for name, c := range map[string]struct {
		guest   net.Listener
		request string
	}{
		"no answer": {mute, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"},
		"no body":   {mute, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabc"},
		"upgrade":   {upgraded, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"},
		"tcp":       {mute, "GET /tcp HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, c.guest, Config{Idle: 50 * time.Millisecond}, Route{})
			_, answer := r.raw(t, c.request)
			if err := r.end(t); !errors.Is(err, ErrIdle) {
				t.Errorf("the stream ended with %v", err)
			}
			if _, err := io.Copy(io.Discard, answer); err != nil { // the proxy does not wait for the rest of the body
				t.Errorf("the connection ended with %v", err)
			}
		})
	}
}

// The rest of a body that was not read is never parsed as a request. Behind a reverse proxy, such a
// request could be mistaken for the request of another client.
func TestTheRestOfABodyIsNoRequest(t *testing.T) {
	for name, text := range map[string]string{
		"answered early": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"chunks":         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
		"garbage":        "garbage\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan bool, 10)
			guest := listen(t, func(conn *net.TCPConn) { asked <- true; says(text)(conn) })
			r := start(t, guest, Config{}, Route{})
			conn, answers := r.raw(t, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
			resp, err := http.ReadResponse(answers, nil)
			if err != nil || !resp.Close {
				t.Fatalf("%+v, %v", resp, err)
			}
			io.Copy(io.Discard, resp.Body)
			r.end(t)
			time.Sleep(2 * drainTime) // longer than the server reads the rest
			io.WriteString(conn, "GET /inner HTTP/1.1\r\nHost: x\r\n\r\n")
			if p, err := io.ReadAll(answers); len(p) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the connection goes on: %q, %v", p, err)
			}
			if len(asked) != 1 {
				t.Errorf("the guest was asked %d times", len(asked))
			}
		})
	}
}

// A connection is reused after a request whose body was read.
func TestConnectionsAreKept(t *testing.T) {
	guest := serve(t, func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) })
	r := start(t, guest, Config{}, Route{})
	conn, answers := r.raw(t, "")
	for range 3 {
		io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
		resp, err := http.ReadResponse(answers, nil)
		if err != nil || resp.StatusCode != http.StatusOK || resp.Close {
			t.Fatalf("%+v, %v", resp, err)
		}
	}
}
