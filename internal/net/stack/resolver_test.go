package stack

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/forkd/forkd/internal/net/nettest"
	"github.com/forkd/forkd/internal/proto/frame"
)

// zone holds the answers of the world's resolver. An answer is an address, or an alias of the form
// ">NAME ADDRESS".
type zone struct {
	mu    sync.Mutex
	addrs map[string]string
}

func (z *zone) set(name, addr string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.addrs[name+"."] = addr
}

func (z *zone) answer(query []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil {
		return nil
	}
	m.Response, m.Additionals = true, nil
	z.mu.Lock()
	addr, ok := z.addrs[m.Questions[0].Name.String()]
	z.mu.Unlock()
	if ok && m.Questions[0].Type == dnsmessage.TypeA {
		h := dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET}
		if alias, ok := strings.CutPrefix(addr, ">"); ok {
			alias, addr, _ = strings.Cut(alias, " ")
			to := dnsmessage.MustNewName(alias + ".")
			m.Answers = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.CNAMEResource{CNAME: to}}}
			h.Name = to
		}
		m.Answers = append(m.Answers, dnsmessage.Resource{Header: h,
			Body: &dnsmessage.AResource{A: netip.MustParseAddr(addr).As4()}})
	}
	p, _ := m.Pack()
	return p
}

// serveDNS runs a resolver in the world, and sets it as the resolver of h.
func serveDNS(t testing.TB, w *nettest.World, h *Host, entries ...string) *zone {
	t.Helper()
	z := &zone{addrs: map[string]string{}}
	for _, e := range entries {
		name, addr, _ := strings.Cut(e, "=")
		z.set(name, addr)
	}
	c := w.ListenUDP(t, resolver+":53")
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(z.answer(buf[:n]), from)
		}
	}()
	nettest.Serve(w.Listen(t, resolver+":53"), func(c net.Conn) {
		defer c.Close()
		buf := make([]byte, 4096)
		if n, err := c.Read(buf); err == nil && n > 2 {
			answer := z.answer(buf[2:n])
			_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
		}
	})
	h.Resolver.Set([]netip.AddrPort{netip.MustParseAddrPort(resolver + ":53")})
	return z
}

// lookup sends the gateway a DNS query for a name, by UDP or TCP, and returns the code of the
// answer.
func (r *rig) lookup(t testing.TB, name string, tcp bool) dnsmessage.RCode {
	t.Helper()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 1, RecursionDesired: true}, Questions: []dnsmessage.Question{
		{Name: dnsmessage.MustNewName(name + "."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	query, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	var c net.Conn
	if tcp {
		c, err = r.dial(t, frame.Gateway+":53")
		query = append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)
	} else {
		c, err = r.guest.DialUDP(netip.MustParseAddrPort(frame.Gateway + ":53"))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Write(query); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 2000)
	n, err := c.Read(answer)
	if err == nil && tcp {
		answer, n = answer[2:], n-2
	}
	if err != nil || m.Unpack(answer[:n]) != nil {
		t.Fatalf("%s: %d bytes, %v", name, n, err)
	}
	return m.RCode
}

// says connects to a server, sends text, and returns the server's answer.
func (r *rig) says(t testing.TB, to, text string) (string, error) {
	t.Helper()
	c, err := r.dial(t, to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	p := make([]byte, len(text))
	n, err := io.ReadFull(c, p)
	return string(p[:n]), err
}

// handshake begins TLS with a server name, and reports whether the ClientHello reached the server.
// The servers are echo servers, which return the client's own bytes. The client's error shows
// whether it has received its own bytes.
func (r *rig) handshake(t testing.TB, to, name string) (through bool) {
	t.Helper()
	return r.handshakeBy(t, to, &tls.Config{ServerName: name})
}

func (r *rig) handshakeBy(t testing.TB, to string, config *tls.Config) (through bool) {
	t.Helper()
	config.InsecureSkipVerify = true
	c, err := r.dial(t, to)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	err = tls.Client(c, config).Handshake()
	alert, ok := errors.AsType[tls.AlertError](err)
	return ok || strings.Contains(err.Error(), "tls:") || alert != 0
}

func request(host string) string { return "GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n" }

func (r *rig) mustCount(t testing.TB, reason string, n uint64) {
	t.Helper()
	waitFor(t, fmt.Sprintf("%d refused as %s, %+v", n, reason, r.counters.Stats().Refused), func() bool {
		return r.count(reason) >= n
	})
}
