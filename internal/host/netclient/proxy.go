package netclient

import (
	"context"
	"encoding/base64"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/forkd/forkd/internal/proto/netproto"
)

// Proxy is the proxy for outgoing TCP connections of sandboxes. The zero value means that there is
// no proxy. ParseProxy returns other values.
type Proxy struct {
	host          string
	port          uint16
	authorization netproto.Hidden
	except        string
}

// defaultProxyPort is the port of a proxy whose URL names no port.
const defaultProxyPort = 80

// ParseProxy parses the URL of a proxy, http://[user:password@]host[:port], and a list of
// exceptions in the format of NO_PROXY. Its errors do not quote the URL, which may contain a
// password.
func ParseProxy(text, except string) (Proxy, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.Hostname() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" {
		return Proxy{}, errors.New("want http://HOST:PORT, the URL of a proxy that knows CONNECT")
	}
	p := Proxy{host: u.Hostname(), port: defaultProxyPort, except: except}
	if text := u.Port(); text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return Proxy{}, errors.New("the port of the proxy is invalid: want 1 to 65535")
		}
		p.port = uint16(port)
	}
	if u.User != nil {
		password, _ := u.User.Password()
		p.authorization = netproto.Hidden("Basic " +
			base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password)))
	}
	return p, nil
}

// lookupTimeout is the time limit for the lookup of a proxy's name.
const lookupTimeout = 2 * time.Second

// resolve returns the proxy with its address. If the name has several addresses, resolve keeps the
// previous address if possible. If the lookup fails, it also keeps the previous address. If there
// is no previous address, it uses the unreachable address in the variable nobody, because
// connections must never bypass the proxy.
func (p Proxy) resolve(before netproto.Proxy) netproto.Proxy {
	if p.host == "" {
		return netproto.Proxy{}
	}
	out := netproto.Proxy{Addr: before.Addr, Authorization: p.authorization, Except: p.except}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", p.host)
	switch {
	case err == nil && len(addrs) > 0 && !slices.Contains(addrs, before.Addr.Addr()):
		out.Addr = netip.AddrPortFrom(addrs[0].Unmap(), p.port)
	case !out.Addr.IsValid():
		out.Addr = netip.AddrPortFrom(nobody, p.port)
	}
	return out
}

// nobody is an address that no host has, because it is reserved for documentation (TEST-NET-3, RFC
// 5737).
var nobody = netip.AddrFrom4([4]byte{203, 0, 113, 1})
