package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync/atomic"

	"github.com/forkd/forkd/client"
)

// netFigures are what became of a child's attempts to fetch from two servers of the demo.
type netFigures struct {
	Rule    string `json:"rule"`    // the first server: all that the child's policy lets through
	Allowed bool   `json:"allowed"` // the child got what that one answers
	Refused bool   `json:"refused"` // the second one was refused to it, and was not asked
	Reason  string `json:"reason"`  // of the refusal, in the policy's word
	Opened  bool   `json:"opened"`  // it got the answer of the second one when its policy allowed it
}

// complete reports whether all is as it should be, or the step was left out.
func (n *netFigures) complete() bool { return n == nil || n.Allowed && n.Refused && n.Opened }

// network lets the first child fetch from two servers of which its policy allows one, and then
// allows the other one as well, to show that the policy alone had kept it away.
func (d *demo) network() (string, error) {
	if len(d.forked.Sandboxes) == 0 {
		return "", errors.New("no child to connect")
	}
	listen, seen, err := d.serverAddress()
	if err != nil {
		return "left out: " + err.Error(), nil
	}
	first, err := serve(listen, seen)
	if err != nil {
		return "", err
	}
	defer first.close()
	second, err := serve(listen, seen)
	if err != nil {
		return "", err
	}
	defer second.close()

	f, id := &netFigures{Rule: first.seen}, d.forked.Sandboxes[0].ID
	d.figures.Network = f
	if err := d.allow(id, first.seen); err != nil {
		return "", err
	}
	if f.Allowed, err = d.fetches(id, first); err != nil {
		return "", err
	}
	fetched, err := d.fetches(id, second)
	if err != nil {
		return "", err
	}
	n, err := d.client.Network(d.ctx, id)
	if err != nil {
		return "", err
	}
	for f.Reason = range n.Stats.Refused { // there is one
	}
	f.Refused = !fetched && second.asked.Load() == 0 && len(n.Stats.Refused) == 1
	if err := d.allow(id, first.seen, second.seen); err != nil {
		return "", err
	}
	if f.Opened, err = d.fetches(id, second); err != nil {
		return "", err
	}
	return f.String(), nil
}

// String says in a few words what happened.
func (n *netFigures) String() string {
	if n.complete() {
		return "the allowed server answered, the other was refused until it was allowed"
	}
	return fmt.Sprintf("allowed: %t, refused: %t, allowed later: %t", n.Allowed, n.Refused, n.Opened)
}

// allow gives a child a policy that lets it reach these addresses and nothing else.
func (d *demo) allow(id string, addresses ...string) error {
	_, err := d.client.SetNetwork(d.ctx, id, client.Network{Mode: "allow", Allow: addresses})
	return err
}

// fetches reports whether a child gets a server's answer.
func (d *demo) fetches(id string, s *server) (bool, error) {
	code := fmt.Sprintf(`
import http.client
def fetch(address):
    try:
        c = http.client.HTTPConnection(address, timeout=%d)
        c.request("GET", "/")
        return c.getresponse().read().decode()
    except ConnectionRefusedError:
        return ""
fetch(%q)`, timeout, s.seen)
	r, err := d.client.Eval(d.ctx, id, client.EvalRequest{Code: code, TimeoutSecs: timeout})
	switch {
	case err != nil:
		return false, err
	case r.Error != "" || r.Result == nil:
		return false, fmt.Errorf("fetch from %s: %s %s", s.seen, r.Error, r.Traceback)
	}
	return *r.Result == "'"+s.answer+"'", nil
}

// server is an HTTP server with one answer.
type server struct {
	seen   string // its address, with the port, as sandboxes see it
	answer string // nobody can guess it
	asked  atomic.Int64
	server http.Server
}

func serve(listen, seen string) (*server, error) {
	l, err := net.Listen("tcp4", net.JoinHostPort(listen, "0"))
	if err != nil {
		return nil, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	s := &server{seen: net.JoinHostPort(seen, strconv.Itoa(port)), answer: rand.Text()}
	s.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.asked.Add(1)
		_, _ = io.WriteString(w, s.answer)
	})
	go func() { _ = s.server.Serve(l) }()
	return s, nil
}

func (s *server) close() { _ = s.server.Close() }

// hostLoopback is the address by which an emulated host reaches this host's loopback (QEMU manual,
// "User-mode networking").
const hostLoopback = "10.0.2.2"

// serverAddress returns where servers of the demo have to listen for sandboxes to reach them, and
// the address that sandboxes reach them by. For an emulated host that is this host's loopback.
// Elsewhere it is an address of this host, which every policy closes that does not name it.
func (d *demo) serverAddress() (listen, seen string, err error) {
	switch {
	case d.where.remote:
		return "", "", errors.New("the daemon is on another host")
	case d.where.accel != "kvm":
		return "127.0.0.1", hostLoopback, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", "", err
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() {
			return p.Addr().String(), p.Addr().String(), nil
		}
	}
	return "", "", errors.New("this host has no IPv4 address besides loopback")
}

// isRemote reports whether a daemon's address may be on another host.
func isRemote(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "unix" || u.Hostname() == "localhost" {
		return false
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return err != nil || !addr.IsLoopback()
}
