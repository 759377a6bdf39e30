package stack

import (
	"crypto/tls"
	"net"
	"net/netip"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/forkd/forkd/internal/net/guesttest"
	"github.com/forkd/forkd/internal/net/nettest"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// TestAttackEncryptedName sends two names in a ClientHello: an unencrypted name that is allowed,
// and the encrypted name of another server at the same address. Such a connection passes only with
// AllowECH.
func TestAttackEncryptedName(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":443"), echo)
	h := NewHost(10000)
	serveDNS(t, w, h, "good.example="+web)
	config := &tls.Config{ServerName: "exfil.example", MinVersion: tls.VersionTLS13,
		EncryptedClientHelloConfigList: guesttest.ECHConfigs(t, "good.example")}
	for _, policy := range []string{"allow good.example", "public !evil.example"} {
		r := addRig(t, w, h, policy, netproto.Limits{})
		r.lookup(t, "good.example", false)
		if r.handshakeBy(t, web+":443", config) {
			t.Errorf("%s: an encrypted name got through", policy)
		}
		r.mustCount(t, "ech", 1)
		if !r.handshake(t, web+":443", "good.example") {
			t.Errorf("%s: TLS that shows its name did not get through", policy)
		}
		opened := makePolicy(t, policy)
		opened.AllowECH = true
		r.SetPolicy(&netproto.SetPolicy{Policy: opened})
		if !r.handshakeBy(t, web+":443", config) {
			t.Errorf("%s: an encrypted name did not get through where the policy allows it", policy)
		}
	}
}

// TestAttackQUIC tries HTTP/3 with an address of an allowed name and with other addresses. The
// client must receive an error at once, so that it uses TCP instead.
func TestAttackQUIC(t *testing.T) {
	w := newWorld(t)
	heard := w.ListenUDP(t, web+":443")
	h := NewHost(10000)
	serveDNS(t, w, h, "good.example="+web)
	for policy, reason := range map[string]string{"allow good.example:443": "no-rule",
		"allow good.example:400-500": "no-rule",
		"allow udp/good.example:443": "quic", "public !evil.example": "quic"} {
		r := addRig(t, w, h, policy, netproto.Limits{})
		r.lookup(t, "good.example", false)
		answers := make(chan [2]byte, 1)
		r.guest.Watch(func(m []byte) {
			ip := header.IPv4(m[frame.HeaderBytes+header.EthernetMinimumSize:])
			if len(ip) > header.IPv4MinimumSize+2 && ip.TransportProtocol() == header.ICMPv4ProtocolNumber {
				answers <- [2]byte(ip.Payload()[:2])
			}
		})
		r.guest.Send(guesttest.Frame(guesttest.UDP(frame.Guest, web, 1024, 443, []byte("question"))))
		if got, want := <-answers, [2]byte{byte(header.ICMPv4DstUnreachable),
			byte(header.ICMPv4PortUnreachable)}; got != want {
			t.Errorf("%s: the client is not told to take TCP: type and code %v", policy, got)
		}
		r.mustCount(t, reason, 1)
	}
	_ = heard.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) // enough time for a packet to arrive
	if n, _, err := heard.ReadFrom(make([]byte, 100)); err == nil {
		t.Errorf("%d bytes got through", n)
	}
	go func() {
		_ = heard.SetReadDeadline(time.Time{})
		if _, from, err := heard.ReadFrom(make([]byte, 100)); err == nil {
			_, _ = heard.WriteTo([]byte("answer"), from)
		}
	}()
	r := addRig(t, w, h, "allow good.example udp/"+web+":443", netproto.Limits{})
	if got, err := r.exchange(t, web+":443"); got != "answer" || err != nil {
		t.Errorf("a rule by address: %q, %v", got, err)
	}
}

// exchange sends a packet and returns the answer.
func (r *rig) exchange(t testing.TB, to string) (string, error) {
	t.Helper()
	c, err := r.guest.DialUDP(netip.MustParseAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	defer func(c net.Conn) { _ = c.Close() }(c)
	if _, err := c.Write([]byte("question")); err != nil {
		return "", err
	}
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	p := make([]byte, 100)
	n, err := c.Read(p)
	return string(p[:n]), err
}
