package stack

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/forkd/forkd/internal/hostroute"
	"github.com/forkd/forkd/internal/net/guesttest"
	"github.com/forkd/forkd/internal/net/nettest"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// A rule for a name permits only addresses that DNS has returned for the name, and only connections
// that name the same server.
func TestAllowedNamePasses(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":80"), echo)
	nettest.Serve(w.Listen(t, web+":443"), echo)
	r := newRig(t, w, "allow good.example")
	serveDNS(t, w, r.host, "good.example="+web)
	for _, tcp := range []bool{false, true} {
		if code := r.lookup(t, "good.example", tcp); code != 0 {
			t.Errorf("lookup: %v", code)
		}
	}
	if got, err := r.says(t, web+":80", request("good.example")); got != request("good.example") || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if !r.handshake(t, web+":443", "good.example") {
		t.Error("TLS did not get through")
	}
}

// TestAttackRebinding changes the address of an allowed name to a private address, or to an address
// of the host. Connections to this address must be refused.
func TestAttackRebinding(t *testing.T) {
	w := newWorld(t)
	for _, a := range []string{web, private, metadata} {
		nettest.Serve(w.Listen(t, a+":80"), echo)
	}
	h := NewHost(10000)
	z := serveDNS(t, w, h)
	for _, policy := range []string{"public", "allow evil.example"} {
		r := addRig(t, w, h, policy, netproto.Limits{})
		z.set("evil.example", web)
		r.lookup(t, "evil.example", false)
		if _, err := r.says(t, web+":80", request("evil.example")); err != nil {
			t.Error(err)
		}
		for to, reason := range map[string]string{private: "private", metadata: "metadata", nettest.Own: "host",
			"127.0.0.1": "loopback"} {
			z.set("evil.example", to)
			r.lookup(t, "evil.example", false)
			r.guest.Send(guesttest.Frame(guesttest.SYN(frame.Guest, to, 1024, 80)))
			r.mustCount(t, reason, 1)
		}
		waitFor(t, "nothing else passes", func() bool { return r.counters.Passed.Load() == 1 && r.counters.Open.Load() == 0 })
	}
}

// TestAttackForgedSNI sends an allowed name by TLS to an address that DNS has not returned for this
// name. The connection must be refused.
func TestAttackForgedSNI(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":443"), echo)
	nettest.Serve(w.Listen(t, web2+":443"), echo)
	r := newRig(t, w, "allow good.example better.example")
	serveDNS(t, w, r.host, "good.example="+web, "better.example="+web2)
	if r.handshake(t, web2+":443", "good.example") {
		t.Error("an address that DNS gave for nothing got through")
	}
	r.mustCount(t, "no-rule", 1)
	r.lookup(t, "good.example", false)
	r.lookup(t, "better.example", false)
	if r.handshake(t, web2+":443", "good.example") {
		t.Error("an address got through under the name of another")
	}
	r.mustCount(t, "name-address", 1)
}

// TestAttackOtherServerName connects to an allowed address, but names a server that is not allowed.
// The gateway cannot read the Host header inside TLS, so the server must check that header.
func TestAttackOtherServerName(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":443"), echo)
	nettest.Serve(w.Listen(t, web+":80"), echo)
	r := newRig(t, w, "allow good.example")
	serveDNS(t, w, r.host, "good.example="+web)
	r.lookup(t, "good.example", false)
	if r.handshake(t, web+":443", "evil.example") {
		t.Error("TLS for another name got through")
	}
	r.mustCount(t, "other-name", 1)
	if got, err := r.says(t, web+":80", request("evil.example")); err == nil {
		t.Errorf("HTTP for another name: %q", got)
	}
	r.mustCount(t, "other-name", 2)
	for i, text := range []string{
		"GET http://good.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: good.example\r\nHost: evil.example\r\n\r\n",
		"SSH-2.0-OpenSSH_9.2\r\n\r\n",
	} {
		if got, err := r.says(t, web+":80", text); err == nil {
			t.Errorf("%q: %q", text, got)
		}
		r.mustCount(t, "no-name", uint64(i)+1)
	}
}

// TestAttackForeignResolver sends DNS queries to servers other than the gateway, by UDP, TCP and
// TLS.
func TestAttackForeignResolver(t *testing.T) {
	w := newWorld(t)
	heard := w.ListenUDP(t, foreign+":53")
	for _, port := range []string{":53", ":853"} {
		nettest.Serve(w.Listen(t, foreign+port), echo)
	}
	for i, policy := range []string{"public", "open"} {
		r := newRig(t, w, policy)
		for _, port := range []string{":53", ":853"} {
			if _, err := r.dial(t, foreign+port); err == nil {
				t.Errorf("%s: TCP%s got through", policy, port)
			}
			c, err := r.guest.DialUDP(netip.MustParseAddrPort(foreign + port))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = c.Write([]byte("query"))
			_ = c.Close()
		}
		r.mustCount(t, "foreign-dns", 4)
		if i == 0 {
			continue
		}
		_ = heard.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) // enough time for a packet to arrive
		if n, _, err := heard.ReadFrom(make([]byte, 100)); err == nil {
			t.Errorf("%d bytes got through by UDP", n)
		}
	}
}

// TestAttackNameNotAllowed checks that DNS refuses a name before it asks any server outside.
func TestAttackNameNotAllowed(t *testing.T) {
	w := newWorld(t)
	r := newRig(t, w, "allow good.example")
	serveDNS(t, w, r.host, "evil.example="+web)
	for _, tcp := range []bool{false, true} {
		if code := r.lookup(t, "c2VjcmV0.evil.example", tcp); code != dnsmessage.RCodeRefused {
			t.Errorf("%v", code)
		}
	}
	r.mustCount(t, "no-rule", 2)
}

// TestAttackClosedAddresses tries metadata services, loopback in several notations, the daemon's
// API on the host's addresses, and other sandboxes. It sends packets as programs with raw sockets
// could. Where possible, a server listens at the address.
func TestAttackClosedAddresses(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, metadata+":80"), echo)
	for _, addr := range []string{"127.0.0.1:80", nettest.Own + ":80"} {
		l, err := net.Listen("tcp4", addr) // on the host
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		nettest.Serve(l, func(c net.Conn) {
			t.Errorf("%v reached %v", c.RemoteAddr(), c.LocalAddr())
			_ = c.Close()
		})
	}
	for _, policy := range []string{"public", "open", "allow 0.0.0.0/0"} {
		r := newRig(t, w, policy)
		// This packet is dropped, because its address is invalid.
		r.guest.Send(guesttest.Frame(guesttest.SYN(frame.Guest, "0.0.0.0", 1024, 80)))
		for _, c := range []struct{ to, reason string }{
			{metadata, "metadata"}, {"127.0.0.1", "loopback"}, {"127.255.255.254", "loopback"}, {"0.1.2.3", "loopback"},
			{nettest.Own, "host"}, {"192.0.2.3", "sandbox-net"}, {frame.Gateway, "sandbox-net"},
		} {
			before := r.count(c.reason)
			r.guest.Send(guesttest.Frame(guesttest.SYN(frame.Guest, c.to, 1024, 80)))
			r.mustCount(t, c.reason, before+1)
		}
		if n := r.counters.Passed.Load(); n != 0 {
			t.Errorf("%s: %d connections passed", policy, n)
		}
	}
}

// TestAttackIPv6 checks that no form of IPv6 leaves the sandbox.
func TestAttackIPv6(t *testing.T) {
	r := newRig(t, newWorld(t), "open")
	p := make(header.IPv6, header.IPv6MinimumSize+header.TCPMinimumSize)
	p.Encode(&header.IPv6Fields{PayloadLength: header.TCPMinimumSize, TransportProtocol: header.TCPProtocolNumber,
		HopLimit: 64})
	copy(p[24:40], netip.MustParseAddr("::ffff:127.0.0.1").AsSlice())
	m := guesttest.Frame(p)
	binary.BigEndian.PutUint16(m[frame.HeaderBytes+12:], uint16(header.IPv6ProtocolNumber))
	r.guest.Send(m)
	waitFor(t, "it is dropped", func() bool { return r.counters.Dropped.Load() == 1 })
}

// TestAttackSpoofedSource sends packets with a source address that is not the address of the guest,
// and ARP messages that claim or request other addresses.
func TestAttackSpoofedSource(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":80"), echo)
	r := newRig(t, w, "open")
	for i, from := range []string{"192.0.2.1", "192.0.2.3", "127.0.0.1", private, "0.0.0.0", "255.255.255.255"} {
		r.guest.Send(guesttest.Frame(guesttest.SYN(from, web, 1024, 80)))
		r.mustCount(t, "spoofed-source", uint64(i)+1)
	}
	m := guesttest.Frame(guesttest.SYN(frame.Guest, web, 1024, 80))
	m[frame.HeaderBytes+11]++ // another hardware address
	r.guest.Send(m)
	r.mustCount(t, "spoofed-source", 7)
	if r.counters.Passed.Load() != 0 || r.counters.Open.Load() != 0 {
		t.Errorf("%+v", r.counters.Stats())
	}
	answered := make(chan struct{}, 10)
	r.guest.Watch(func(m []byte) {
		if header.Ethernet(m[frame.HeaderBytes:]).Type() == header.ARPProtocolNumber {
			answered <- struct{}{}
		}
	})
	for _, arp := range []struct{ sender, target string }{{frame.Guest, "192.0.2.3"}, {"192.0.2.1", "192.0.2.1"},
		{"192.0.2.3", "192.0.2.1"}} {
		r.guest.Send(arpRequest(arp.sender, arp.target))
	}
	r.guest.Send(arpRequest(frame.Guest, frame.Gateway))
	<-answered
	if len(answered) != 0 {
		t.Error("ARP for other addresses was answered")
	}
	if _, err := r.says(t, web+":80", "hello"); err != nil {
		t.Errorf("an honest connection: %v", err)
	}
}

func arpRequest(sender, target string) []byte {
	p := make(header.ARP, header.ARPSize)
	p.SetIPv4OverEthernet()
	p.SetOp(header.ARPRequest)
	copy(p.HardwareAddressSender(), frame.GuestMAC[:])
	copy(p.ProtocolAddressSender(), netip.MustParseAddr(sender).AsSlice())
	copy(p.ProtocolAddressTarget(), netip.MustParseAddr(target).AsSlice())
	m := guesttest.Frame(p)
	binary.BigEndian.PutUint16(m[frame.HeaderBytes+12:], uint16(header.ARPProtocolNumber))
	return m
}

// TestAttackRefusedUDPIsAnswered checks that a program whose packet is refused gets an error at
// once.
func TestAttackRefusedUDPIsAnswered(t *testing.T) {
	r := newRig(t, newWorld(t), "none")
	answer := make(chan byte, 1)
	r.guest.Watch(func(m []byte) {
		if ip := header.IPv4(m[frame.HeaderBytes+header.EthernetMinimumSize:]); len(ip) > 21 &&
			ip.TransportProtocol() == header.ICMPv4ProtocolNumber {
			answer <- ip.Payload()[0]
		}
	})
	c, err := r.guest.DialUDP(netip.MustParseAddrPort(web + ":123"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Write([]byte("x"))
	if kind := <-answer; kind != byte(header.ICMPv4DstUnreachable) {
		t.Errorf("ICMP type %d", kind)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if kind, code, err := r.guest.Ping(ctx, netip.MustParseAddr(web)); kind != 3 || code != 13 || err != nil {
		t.Errorf("%d, %d, %v", kind, code, err)
	}
	r.mustCount(t, "mode-none", 2)
}

// TestAttackDeniedNameAsProxy sends requests that name a denied server in forms that servers
// interpret differently. The sandbox learns the address of the server without DNS.
func TestAttackDeniedNameAsProxy(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":80"), echo)
	r := newRig(t, w, "public !evil.example")
	for i, text := range []string{
		"GET http://evil.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"GET http://good.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: good.example\r\nHost: evil.example\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: evil.example\x01\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		if got, err := r.says(t, web+":80", text); err == nil {
			t.Errorf("%q: %q", text, got)
		}
		r.mustCount(t, "unclear-name", uint64(i)+1)
	}
	if got, err := r.says(t, web+":80", request("evil.example")); err == nil {
		t.Errorf("the denied name: %q", got)
	}
	for _, text := range []string{request("good.example"), request("93.184.216.34"), "GET / HTTP/1.0\r\n\r\n"} {
		if _, err := r.says(t, web+":80", text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestAttackPrivateNames looks up names of the host's network, and makes a reverse lookup of a
// private address, under a policy that permits the internet. It also looks up a public name that is
// an alias for a name of the host's network.
func TestAttackPrivateNames(t *testing.T) {
	w := newWorld(t)
	h := NewHost(10000)
	serveDNS(t, w, h, "nas="+private, "db.corp.internal="+private, "good.example="+web,
		"www.evil.example=>git.corp.internal "+private, "www.good.example=>db.corp.internal "+private)
	r := addRig(t, w, h, "public db.corp.internal", netproto.Limits{})
	names := []string{"nas", "printer.local", "git.corp.internal", "router.home.arpa", "3.2.1.10.in-addr.arpa",
		"www.evil.example"}
	for _, name := range names {
		if code := r.lookup(t, name, false); code != dnsmessage.RCodeRefused {
			t.Errorf("%s: %v", name, code)
		}
	}
	r.mustCount(t, "private-name", uint64(len(names)))
	for _, name := range []string{"good.example", "db.corp.internal", "www.good.example"} {
		if code := r.lookup(t, name, false); code != dnsmessage.RCodeSuccess {
			t.Errorf("%s: %v", name, code)
		}
	}
}

// TestAttackOwnAddresses tries addresses of the host that the host does not use for its own
// connections: a second address in a network, ranges that are routed to the host, and an address
// that is added while a connection is open. If the query to the kernel fails, every address counts
// as an address of the host.
func TestAttackOwnAddresses(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web2+":80"), echo)
	nettest.IP(t, "addr add 11.7.0.1/24 dev w0")
	nettest.IP(t, "addr add 11.7.0.2/24 dev w0") // a secondary address
	nettest.IP(t, "route add local 11.8.0.0/16 dev lo")
	r := newRig(t, w, "open")
	for i, to := range []string{"11.7.0.1", "11.7.0.2", "11.8.9.9"} {
		r.guest.Send(guesttest.Frame(guesttest.SYN(frame.Guest, to, 1024, 80)))
		r.mustCount(t, "host", uint64(i)+1)
	}
	if r.host.isOwn(netip.MustParseAddr(web2)) {
		t.Error("an address outside is taken for the host's")
	}

	c := r.mustDial(t, web2+":80")
	r.host.SetOwn([]netip.Addr{netip.MustParseAddr(web)})
	r.Redecide()
	if _, err := io.WriteString(c, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Errorf("a connection that is not concerned: %v", err)
	}
	r.host.SetOwn([]netip.Addr{netip.MustParseAddr(web2)})
	r.Redecide()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("a connection to what became the host's: %v", err)
	}
	r.mustCount(t, "host", 4)

	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	local := hostroute.IsLocal(netip.MustParseAddr(web))
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !local {
		t.Error("an address of which nothing is known may be connected to")
	}
}
