package stack

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/forkd/forkd/internal/net/nettest"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// serveProxy runs a proxy in the world. It opens tunnels to any destination, and records the
// requests.
func serveProxy(t *testing.T, w *nettest.World, answer string) (asked func() string) {
	t.Helper()
	var mu sync.Mutex
	var log strings.Builder
	nettest.Serve(w.Listen(t, private+":3128"), func(c net.Conn) {
		defer c.Close()
		in := bufio.NewReader(c)
		req, err := http.ReadRequest(in)
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		log.WriteString(req.Method + " " + req.Host + " " + req.Header.Get("Proxy-Authorization") + "\n")
		mu.Unlock()
		// Send the server's first bytes together with the answer.
		_, _ = io.WriteString(c, answer+"first")
		_, _ = io.Copy(c, in)
	})
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return log.String()
	}
}

// If the policy permits a TCP connection, the host's proxy is asked to connect to the address.
// Connections to hosts in the proxy's list of exceptions do not use the proxy.
func TestUpstreamProxy(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web2+":25"), echo)
	asked := serveProxy(t, w, "HTTP/1.1 200 OK\r\nX: y\r\n\r\n")
	h := NewHost(10000)
	serveDNS(t, w, h, "direct.example="+web, "other.example="+web2)
	h.SetProxy(netproto.Proxy{Addr: netip.MustParseAddrPort(private + ":3128"), Authorization: "Basic s3cr3t",
		Except: "11.0.0.0/8,.nothing.example," + web2})
	r := addRig(t, w, h, "public !10.9.9.9", netproto.Limits{})
	c := r.mustDial(t, web+":25")
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, len("firsthello"))
	if _, err := io.ReadFull(c, p); err != nil || string(p) != "firsthello" {
		t.Errorf("%q, %v", p, err)
	}
	if want := "CONNECT " + web + ":25 Basic s3cr3t\n"; asked() != want {
		t.Errorf("the proxy was asked for %q, want %q", asked(), want)
	}
	if got, err := r.says(t, web2+":25", "hello"); got != "hello" || err != nil {
		t.Errorf("past the proxy: %q, %v", got, err)
	}
	for _, to := range []string{private + ":3128", metadata + ":80", "127.0.0.1:80"} {
		if _, err := r.dial(t, to); err == nil {
			t.Errorf("%s got through", to)
		}
	}
	if n := strings.Count(asked(), "CONNECT"); n != 1 {
		t.Errorf("the proxy was asked %d times: %s", n, asked())
	}
	h.SetProxy(netproto.Proxy{})
	nettest.Serve(w.Listen(t, web+":26"), echo)
	if got, err := r.says(t, web+":26", "hello"); got != "hello" || err != nil {
		t.Errorf("without a proxy: %q, %v", got, err)
	}
}

// If the proxy refuses a tunnel, or sends an invalid answer, the flow log names this as the reason
// why the connection failed.
func TestUpstreamProxyRefuses(t *testing.T) {
	for name, answer := range map[string]string{
		"refuses":  "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
		"nonsense": "SSH-2.0-OpenSSH\r\n\r\n",
		"endless":  strings.Repeat("x", 2*maxHead),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			serveProxy(t, w, answer)
			h := NewHost(10000)
			lines := &logBuffer{}
			h.Log.Set(lines)
			h.SetProxy(netproto.Proxy{Addr: netip.MustParseAddrPort(private + ":3128"), Authorization: "Basic s3cr3t"})
			r := addRig(t, w, h, "public", netproto.Limits{})
			if _, err := r.dial(t, web+":25"); err == nil {
				t.Error("connected")
			}
			waitFor(t, "the log says why", func() bool { return strings.Contains(lines.String(), "proxy: it") })
			if strings.Contains(lines.String(), "s3cr3t") {
				t.Error(lines.String())
			}
		})
	}
}
