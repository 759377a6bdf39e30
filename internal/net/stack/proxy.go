package stack

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/forkd/forkd/internal/proto/netproto"
)

// upstream is the HTTP proxy that outgoing TCP connections of the host must use.
type upstream struct {
	netproto.Proxy
	through func(*url.URL) (*url.URL, error) // returns the proxy for a URL, or nil for a direct connection
}

// SetProxy makes outgoing TCP connections use a proxy. If p has no address, they use no proxy.
func (h *Host) SetProxy(p netproto.Proxy) {
	if !p.Addr.IsValid() {
		h.proxy.Store(nil)
		return
	}
	config := httpproxy.Config{HTTPSProxy: "http://" + p.Addr.String(), NoProxy: p.Except}
	h.proxy.Store(&upstream{p, config.ProxyFunc()})
}

// uses reports whether connections to an address use the proxy. The parameter names has the names
// for which DNS returned that address.
func (u *upstream) uses(to netip.AddrPort, names []string) bool {
	hosts := append(slices.Clone(names), to.Addr().String())
	return !slices.ContainsFunc(hosts, func(host string) bool {
		proxy, err := u.through(&url.URL{Scheme: "https", Host: fmt.Sprintf("%s:%d", host, to.Port())})
		return err == nil && proxy == nil
	})
}

// dial connects a permitted flow to its server. If a proxy is used, dial tells the proxy to connect
// to the server's address. It does not pass a name to the proxy, because the proxy could resolve
// the name to an address that the policy has not approved.
func (h *Host) dial(ctx context.Context, f *flow) (*net.TCPConn, error) {
	u := h.proxy.Load()
	if u == nil || !u.uses(f.To, f.Names) {
		return dialTCP(ctx, f.To, f.buffers())
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := dialTCP(ctx, u.Addr, f.buffers())
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err = u.connect(conn, f.To.String())
	if !stop() {
		err = errors.Join(err, ctx.Err())
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("proxy: %w", err)
	}
	return conn, nil
}

// connect asks the proxy for a tunnel to an address (RFC 9110 §9.3.6).
func (u *upstream) connect(conn io.ReadWriter, to string) error {
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: to}, Host: to,
		Header: http.Header{"User-Agent": {"forkd"}}}
	if u.Authorization != "" {
		req.Header.Set("Proxy-Authorization", string(u.Authorization))
	}
	if err := req.Write(conn); err != nil {
		return err
	}
	head, err := readHead(conn)
	if err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), req)
	if err != nil {
		return errors.New("it does not answer in HTTP")
	}
	_ = resp.Body.Close() // the body has been read
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("it answers %d to CONNECT", resp.StatusCode)
	}
	return nil
}

// maxHead is the maximum length, in bytes, of the proxy's answer before the tunnel begins.
const maxHead = 16 << 10

// readHead reads up to the end of the headers and not a byte further, because the next bytes come
// from the server.
func readHead(r io.Reader) ([]byte, error) {
	head := make([]byte, 0, 512)
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		if len(head) == maxHead {
			return nil, errors.New("its answer has no end")
		}
		var b [1]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return nil, err
		}
		head = append(head, b[0])
	}
	return head, nil
}
