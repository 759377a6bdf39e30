// Command hostnames is a proxy for E2B packages that can only connect to https://PORT-ID.DOMAIN. It
// passes their requests to the daemon at $FORKD_URL. It terminates TLS with certificates of `forkd
// e2b setup`, and sends the port and the id in the host name as headers. It prints DOMAIN and the
// directory of the certificates, and exits when its standard input ends.
//
// With --dns, it also resolves all names below DOMAIN, for programs with an /etc/resolv.conf of
// their own. For any other name, it answers that the name does not exist.
//
// The proxy is needed because the daemon in an emulated host has no --proxy-domain. The group
// e2btls tests how the daemon itself serves host names and TLS.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/forkd/forkd/internal/daemon/plainhttp"
)

const domain = "e2b.localhost"

var service = regexp.MustCompile(`^([0-9]+)-([a-z0-9-]+)\.`)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "hostnames: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	listen := flag.String("listen", "127.0.0.1:0", "TCP address")
	names := flag.String("dns", "", "UDP address of a DNS server; empty: none")
	flag.Parse()
	daemon, err := url.Parse(os.Getenv("FORKD_URL"))
	if err != nil {
		return fmt.Errorf("FORKD_URL: %w", err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if daemon.Scheme == "unix" {
		socket := daemon.Path
		daemon = &url.URL{Scheme: "http", Host: "daemon"}
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "hostnames")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	here := domain + ":" + port
	if out, err := exec.Command("forkd", "e2b", "setup", "--dir", dir, "--domain", here).CombinedOutput(); err != nil {
		return fmt.Errorf("forkd e2b setup: %w: %s", err, out)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		return err
	}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(daemon)
		if m := service.FindStringSubmatch(r.In.Host); m != nil {
			r.Out.Header.Set("E2b-Sandbox-Port", m[1])
			r.Out.Header.Set("E2b-Sandbox-Id", m[2])
		}
	}}
	server := &http.Server{Handler: proxy}
	secure := &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
	failed := make(chan error, 3)
	go func() { failed <- server.Serve(plainhttp.Redirecting(l, secure, slog.New(slog.DiscardHandler))) }()
	if *names != "" {
		udp, err := net.ListenPacket("udp", *names)
		if err != nil {
			return err
		}
		go func() { failed <- resolve(udp) }()
	}
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		failed <- err
	}()
	fmt.Println(here, dir)
	return <-failed
}

// resolve answers DNS queries: names below the domain have the address 127.0.0.1.
func resolve(udp net.PacketConn) error {
	packet := make([]byte, 512)
	for {
		n, from, err := udp.ReadFrom(packet)
		if err != nil {
			return err
		}
		var p dnsmessage.Parser
		header, err := p.Start(packet[:n])
		if err != nil {
			continue // not a query
		}
		q, err := p.Question()
		if err != nil {
			continue
		}
		m := dnsmessage.Message{Header: dnsmessage.Header{ID: header.ID, Response: true, RecursionAvailable: true},
			Questions: []dnsmessage.Question{q}}
		below := strings.HasSuffix(strings.ToLower(q.Name.String()), "."+domain+".")
		switch {
		case !below:
			m.RCode = dnsmessage.RCodeNameError
		case q.Type == dnsmessage.TypeA:
			m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class},
				Body: &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}}}}
		}
		answer, err := m.Pack()
		if err != nil {
			return err
		}
		if _, err := udp.WriteTo(answer, from); err != nil {
			return err
		}
	}
}
