package inbound

import (
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/auth"
)

// ErrorHeader marks answers of the daemon on routes to guests. It is removed from guests' answers.
const ErrorHeader = "Forkd-Error"

// apiKeyHeader is the header in which clients of E2B send the daemon's token.
const apiKeyHeader = "X-Api-Key"

// prefixHeader tells the guest which prefix the daemon removed from the path.
const prefixHeader = "X-Forwarded-Prefix"

// request converts a client's request to the request for the guest. It keeps the client's Host
// header, because servers compare it with Origin. It sets the forwarding headers itself, and takes
// only X-Forwarded-Proto from the client's request.
func (p *Proxy) request(pr *httputil.ProxyRequest, route *Route) {
	in, out := pr.In, pr.Out
	path, err := url.PathUnescape(route.Path)
	if err != nil {
		path = route.Path // route.Path is already parsed
	}
	out.URL = &url.URL{Scheme: "http", Host: "localhost", Path: path, RawPath: route.Path,
		RawQuery: in.URL.RawQuery, ForceQuery: in.URL.ForceQuery}
	for _, name := range []string{auth.TokenHeader, ErrorHeader, prefixHeader, "X-Real-Ip"} {
		out.Header.Del(name)
	}
	// A key that is not a token of the daemon is for the guest's own API.
	if keys := slices.DeleteFunc(slices.Clone(in.Header[apiKeyHeader]), p.IsToken); len(keys) > 0 {
		out.Header[apiKeyHeader] = keys
	} else {
		out.Header.Del(apiKeyHeader)
	}
	if values := p.authorization(in.Header, route.Signed || route.Open); len(values) > 0 {
		out.Header["Authorization"] = values
	} else {
		out.Header.Del("Authorization")
	}
	pr.SetXForwarded()
	if proto := in.Header.Get("X-Forwarded-Proto"); proto == "https" || proto == "http" {
		out.Header.Set("X-Forwarded-Proto", proto) // a reverse proxy that terminates TLS has set it
	}
	if route.Prefix != "" {
		out.Header.Set(prefixHeader, route.Prefix)
	}
	if route.isDaemons() {
		out.Header.Del("Cookie") // the cookies belong to the daemon's host, and thus to all servers on that host
	}
}

// authorization returns the values of Authorization that are passed to the guest. It withholds the
// tokens of the daemon. A client may send such a token as a bearer token or, like clients of
// registries, as the password of Basic credentials. authorization passes other bearer tokens only
// if the request has the header TokenHeader or needed no token. A request needs no token if it is
// signed, or if the port is open.
func (p *Proxy) authorization(h http.Header, signed bool) (values []string) {
	otherwise := signed || h.Get(auth.TokenHeader) != ""
	for _, v := range h["Authorization"] {
		token, bearer := auth.Bearer(v)
		if bearer && (!otherwise || p.IsToken(token)) || p.hasToken(v) {
			continue
		}
		values = append(values, v)
	}
	return values
}

// hasToken reports whether a value of Authorization has Basic credentials with a token of the
// daemon.
func (p *Proxy) hasToken(authorization string) bool {
	user, password, basic := (&http.Request{Header: http.Header{"Authorization": {authorization}}}).BasicAuth()
	return basic && (p.IsToken(user) || p.IsToken(password))
}

// contain removes headers from an answer if their effect goes beyond the guest's port. If a page is
// at an address of the daemon itself, contain also makes the page's origin opaque, so that the page
// does not have the daemon's origin.
func contain(resp *http.Response, in *http.Request, route *Route) {
	h := resp.Header
	h.Del(ErrorHeader)
	h.Del(apiv1.NodeHeader) // a router would send the request to the node that the guest names
	if !route.isDaemons() {
		ownCookies(resp)
		h.Del("Clear-Site-Data") // "cookies" means the cookies of all subdomains, including those of other sandboxes
		if route.Signed {        // anyone who knows the address has the permission, so other servers must not see it
			h.Set("Referrer-Policy", "same-origin")
		} else if in.Header.Get("Sec-Fetch-Site") == "" || in.Header.Get(auth.TokenHeader) != "" {
			containLocation(h, in, route)
		}
		return
	}
	for _, name := range originWide {
		h.Del(name)
	}
	h.Add("Content-Security-Policy", sandboxed)
	containLocation(h, in, route)
}

// splitTrailers converts headers to trailers in a gRPC answer without a body (gRPC over HTTP/2,
// Trailers-Only). In such an answer, header and trailer are one frame. The daemon flushes the
// header of every answer, and clients would then look for the status in a second frame.
func splitTrailers(h http.Header) {
	h.Del("Content-Length")
	for _, name := range slices.Collect(maps.Keys(h)) { // a copy, because the loop changes the map
		if !slices.Contains(staysHeader, name) {
			h[http.TrailerPrefix+name] = h[name]
			delete(h, name)
		}
	}
}

// staysHeader are the headers that splitTrailers keeps.
var staysHeader = []string{"Content-Type", "Date", "Content-Security-Policy", "Referrer-Policy"}

// containLocation removes a redirect that leads away from the guest's port. A program that follows
// the redirect would send the header Forkd-Token to the new address, because the program does not
// know that the header is secret. If the daemon requires no token, the program could also send the
// daemon a request that the guest chose. contain does not call this function for browsers at a host
// name of the guest, because browsers do not send the token to the new address.
func containLocation(h http.Header, in *http.Request, route *Route) {
	at := h.Get("Location")
	if at == "" {
		return
	}
	h.Del("Location")
	if own, ok := ownLocation(at, in.Host, route); ok {
		h.Set("Location", own)
	}
}

// sandboxed gives a page an opaque origin. The scripts of the page run, but their requests to the
// daemon come from another origin and are refused. A policy that the guest sends in addition can
// only restrict the page further.
const sandboxed = "sandbox allow-scripts allow-forms allow-modals allow-popups allow-downloads"

// originWide are the headers whose effect is not limited to one page.
var originWide = []string{
	"Set-Cookie",
	"Clear-Site-Data",
	"Strict-Transport-Security",
	"Public-Key-Pins",
	"Alt-Svc",
	"Service-Worker-Allowed",
	"Refresh", // acts like Location
	"Report-To",
	"Reporting-Endpoints",
	"Nel",
	"Set-Login",
	"Accept-CH",
	"Critical-CH",
	"Use-As-Dictionary",
	"Shared-Storage-Write",
	"Observe-Browsing-Topics",
	"Attribution-Reporting-Info",
	"Attribution-Reporting-Register-Source",
	"Attribution-Reporting-Register-Trigger",
	"Attribution-Reporting-Register-OS-Source",
	"Attribution-Reporting-Register-OS-Trigger",
	"Sec-Session-Registration",
	"Secure-Session-Registration",
}

// ownLocation returns the target of a redirect if it is below the route's prefix. Other redirects
// are not passed on: the client would follow them with its token, method and body. Over a unix
// socket, a redirect to any host would reach the daemon.
func ownLocation(location, host string, route *Route) (string, bool) {
	base := &url.URL{Scheme: "http", Host: host, RawPath: route.Path}
	var err error
	if base.Path, err = url.PathUnescape(route.Path); err != nil {
		return "", false
	}
	ref, err := url.Parse(location)
	if err != nil || ref.Opaque != "" || ref.User != nil {
		return "", false
	}
	to := base.ResolveReference(ref)
	if to.Scheme != "http" && to.Scheme != "https" || !sameHost(to.Host, host, route.Port) || climbs(to.Path) {
		return "", false
	}
	own := to.EscapedPath()
	if !strings.HasPrefix(own, "/") {
		own = "/" + own
	}
	own = route.Prefix + own
	if to.RawQuery != "" {
		own += "?" + to.RawQuery
	}
	if to.Fragment != "" {
		own += "#" + to.EscapedFragment()
	}
	return own, true
}

// sameHost reports whether a host is the guest's own, so that a redirect to it does not leave the
// guest. The guest has two hosts of its own: the host that it saw in the request's Host header
// (host), and its loopback.
func sameHost(to, host string, port uint16) bool {
	if strings.EqualFold(to, host) {
		return true
	}
	name, p, err := net.SplitHostPort(to)
	if err != nil {
		return false
	}
	own, err := ParsePort(p)
	return err == nil && own == port && (name == "localhost" || name == "127.0.0.1" || name == "::1")
}

// climbs() reports whether a decoded path has a part that a client would treat as "..". A client
// may decode the part once more, or convert backslashes to slashes as browsers do.
func climbs(path string) bool {
	for part := range strings.FieldsFuncSeq(strings.ToLower(path), func(r rune) bool { return r == '/' || r == '\\' }) {
		if strings.ReplaceAll(part, "%2e", ".") == ".." {
			return true
		}
	}
	return false
}

// ownCookies limits the cookies of an answer to the host that sends the answer. Without this limit,
// a guest could set cookies for the domain that all sandboxes share.
func ownCookies(resp *http.Response) {
	if len(resp.Header["Set-Cookie"]) == 0 {
		return
	}
	cookies := resp.Cookies()
	resp.Header.Del("Set-Cookie")
	for _, c := range cookies {
		c.Domain = ""
		if text := c.String(); text != "" {
			resp.Header.Add("Set-Cookie", text)
		}
	}
}
