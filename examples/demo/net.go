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

// netFigures are the results of a child that tries to fetch from two servers of the demo.
type netFigures struct {
	Rule    string `json:"rule"`    // address of the first server, the only one that the child's policy allows at first
	Allowed bool   `json:"allowed"` // the child received the answer of the first server
	Refused bool   `json:"refused"` // the child could not connect to the second server
	Reason  string `json:"reason"`  // reason of the refusal, from the daemon
	Opened  bool   `json:"opened"`  // the child received the answer of the second server after its policy was changed
}

// complete reports whether all results are right, or the step was skipped.
func (n *netFigures) complete() bool { return n == nil || n.Allowed && n.Refused && n.Opened }

// network lets the first child fetch from two servers. At first, the child's policy allows only the
// first server. Then the policy is changed to allow both, to show that only the policy had
// prevented the connection to the second server.
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
	for f.Reason = range n.Stats.Refused { // there is only one reason
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

// String describes the results in words.
func (n *netFigures) String() string {
	if n.complete() {
		return "the allowed server answered, the other was refused until it was allowed"
	}
	return fmt.Sprintf("allowed: %t, refused: %t, allowed later: %t", n.Allowed, n.Refused, n.Opened)
}

// allow sets a policy that lets a child connect to these addresses and to no other address.
func (d *demo) allow(id string, addresses ...string) error {
	_, err := d.client.SetNetwork(d.ctx, id, client.Network{Mode: "allow", Allow: addresses})
	return err
}

// fetches reports whether a child receives the answer of a server.
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

// server is an HTTP server that always gives the same answer.
type server struct {
	seen   string // address and port at which sandboxes connect to it
	answer string // random, so that a child cannot guess it
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

// hostLoopback is the address of this host's loopback for programs in the emulated host (QEMU
// manual, "User-mode networking").
const hostLoopback = "10.0.2.2"

// serverAddress returns two addresses: the demo's servers listen on the first, and sandboxes
// connect to the second. If the sandboxes are in the emulated host, the servers listen on this
// host's loopback. If the sandboxes are on this host, the servers listen on an address of this
// host. A sandbox may connect to this address only if its policy names the address.
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

// isRemote reports whether the address of a daemon may belong to another host.
func isRemote(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "unix" || u.Hostname() == "localhost" {
		return false
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return err != nil || !addr.IsLoopback()
}
