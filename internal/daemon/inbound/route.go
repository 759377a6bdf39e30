package inbound

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// Route is the destination that a request names.
type Route struct {
	ID     string // id of the sandbox
	Port   uint16
	Path   string // path for the guest, escaped as in the client's request
	Prefix string // prefix that was removed from the path; empty if the request named the guest by its host name
	Shared bool   // the address is one of the daemon's own; headers or a signature name the sandbox
	Signed bool   // a signature permits the request, which has no token of the daemon
	Open   bool   // the request has neither a token nor a signature
	Agent  bool   // Port is the agent's and is reached over vsock; no server in the guest has this port
}

// isDaemons reports whether the address of a request is the daemon's own, and not a host name of a
// guest's port.
func (r *Route) isDaemons() bool { return r.Prefix != "" || r.Shared }

// byPath matches a path that names a port. The rest of the path belongs to the guest. The path must
// be matched before it is cleaned, because "..", "//" or "%2f" in the guest's part could otherwise
// lead to another route.
var byPath = regexp.MustCompile(`^(/v1/sandboxes/([A-Za-z0-9-]+)/proxy/([1-9][0-9]{0,4}))(/.*)?$`)

// FindPath returns the route in a path, if the path names one.
func FindPath(u *url.URL) (r Route, ok bool) {
	m := byPath.FindStringSubmatch(u.EscapedPath())
	if m == nil {
		return r, false
	}
	port, err := ParsePort(m[3])
	return Route{ID: m[2], Port: port, Prefix: m[1], Path: or(m[4], "/")}, err == nil
}

func or(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// ParsePort reads a TCP port in decimal.
func ParsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || text[0] == '0' {
		return 0, fmt.Errorf("port %q: want a number from 1 to 65535", text)
	}
	return uint16(n), nil
}

// Domain is a DNS name. Every port of every sandbox has a host name below this DNS name. The first
// label of the host name is PORT-ID or PORT-ID-PERMISSION (see auth.Links). With the zero Domain,
// ports have no host names.
type Domain struct{ scheme, name, port string }

// domainName matches a DNS name in lower case. Labels begin with a letter, so an IP address does
// not match.
var domainName = regexp.MustCompile(`^[a-z]([a-z0-9-]*[a-z0-9])?(\.[a-z]([a-z0-9-]*[a-z0-9])?)*$`)

// ParseDomain parses the address at which clients reach the daemon: NAME or NAME:PORT, perhaps
// after http:// or https://.
func ParseDomain(text string) (d Domain, err error) {
	d.scheme = "http"
	rest := strings.ToLower(text)
	if scheme, after, ok := strings.Cut(rest, "://"); ok {
		d.scheme, rest = scheme, after
	}
	d.name = rest
	if name, port, ok := strings.Cut(rest, ":"); ok {
		if _, err := ParsePort(port); err != nil {
			return Domain{}, fmt.Errorf("%q: %w", text, err)
		}
		d.name, d.port = name, port
	}
	if d.scheme != "http" && d.scheme != "https" || len(d.name) > maxDomain || !domainName.MatchString(d.name) {
		return Domain{}, fmt.Errorf("%q: want a DNS name such as sandboxes.example.com, with http:// or https:// before it "+
			"and :PORT behind it where clients need them", text)
	}
	return d, nil
}

// maxDomain is the maximum length of the domain. A DNS name has at most 253 characters, and a
// port's host name adds a label of 63 characters and a dot.
const maxDomain = 253 - 64

// IsSet reports whether there is a domain.
func (d Domain) IsSet() bool { return d.name != "" }

// WithPort sets the port of d if d has none.
func (d Domain) WithPort(port string) Domain {
	d.port = or(d.port, port)
	return d
}

// Name returns the domain's name.
func (d Domain) Name() string { return d.name }

// Host returns the domain with the port that clients use.
func (d Domain) Host() string {
	if d.port == "" {
		return d.name
	}
	return net.JoinHostPort(d.name, d.port)
}

// URL returns the address of a port of a sandbox. If permission is empty, clients of that address
// need the daemon's token.
func (d Domain) URL(id string, port uint16, permission string) string {
	host := fmt.Sprintf("%d-%s", port, id)
	if permission != "" {
		host += "-" + permission
	}
	host += "." + d.name
	if d.port != "" && d.port != map[string]string{"http": "80", "https": "443"}[d.scheme] {
		host = net.JoinHostPort(host, d.port)
	}
	return d.scheme + "://" + host + "/"
}

// label matches the first label of a port's host name.
var label = regexp.MustCompile(`^([1-9][0-9]{0,4})-(sb-[a-z2-7]{26})(?:-([a-z2-7]{1,27}))?$`)

// ErrHost reports a host name that is below the domain but names no port of a sandbox.
var ErrHost = errors.New("want PORT-ID as the first part of the host name, such as 8080-sb-askayjdqa5urabarmv2ude3h6q")

// FindHost returns the route that the host of a request names, and the permission in the host. It
// also reports whether the host is below the domain.
func (d Domain) FindHost(host string, u *url.URL) (r Route, permission string, below bool, err error) {
	if !d.IsSet() {
		return r, "", false, nil
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	first, below := strings.CutSuffix(strings.TrimSuffix(strings.ToLower(host), "."), "."+d.name)
	if !below {
		return r, "", false, nil
	}
	m := label.FindStringSubmatch(first)
	if m == nil {
		return r, "", true, ErrHost
	}
	port, err := ParsePort(m[1])
	if err != nil {
		return r, "", true, ErrHost
	}
	return Route{ID: m[2], Port: port, Path: or(u.EscapedPath(), "/"), Signed: m[3] != ""}, m[3], true, nil
}
