// Command hostnames is a proxy for E2B packages that can only connect to https://PORT-ID.DOMAIN. It
// passes their requests to the daemon at $FORKD_URL. It terminates TLS with certificates of `forkd
// e2b setup`, and sends the port and the id in the host name as headers. It prints DOMAIN and the
// directory of the certificates, and exits when its standard input ends.
//
// The proxy is needed because the daemon in an emulated host has no --proxy-domain. The group
// e2btls tests how the daemon itself serves host names and TLS.
package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	daemon, err := url.Parse(os.Getenv("FORKD_URL"))
	if err != nil {
		return fmt.Errorf("FORKD_URL: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
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
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(daemon)
		if m := service.FindStringSubmatch(r.In.Host); m != nil {
			r.Out.Header.Set("E2b-Sandbox-Port", m[1])
			r.Out.Header.Set("E2b-Sandbox-Id", m[2])
		}
	}}
	server := &http.Server{Handler: proxy, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}}
	failed := make(chan error, 1)
	go func() { failed <- server.ServeTLS(l, "", "") }()
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		failed <- err
	}()
	fmt.Println(here, dir)
	return <-failed
}
