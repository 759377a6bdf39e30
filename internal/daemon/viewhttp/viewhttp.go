// Package viewhttp serves the view of internal/ui at the daemon's path /ui, to browsers whose users
// have a token of the daemon.
//
// It grants no rights itself. Package ui keeps the token of a session, and sends it with each
// request of the page to the API in this process. So a page has the rights and limits of a program
// with this token, and the same audit lines.
package viewhttp

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/ui"
)

const root = "/ui/"

// View serves the view. It implements http.Handler.
type View struct {
	face   *face.Face
	server *ui.Server
}

// New returns a View, whose page calls api.
func New(f *face.Face, api http.Handler) *View {
	v := &View{face: f}
	v.server = ui.NewForTokens(ui.TokenConfig{Root: root, API: api, Origin: v.origin, Login: v.login, Own: v.own})
	return v
}

// Serves reports whether a request is for the view.
func (v *View) Serves(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, root) || r.URL.Path+"/" == root
}

// ServeHTTP answers a request for which Serves returned true.
func (v *View) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch _, err := v.origin(r); {
	case errors.Is(err, errNoTokens), errors.Is(err, errPlain): // for people, in a browser
		v.own(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			face.LetGo(w)
			http.Error(w, err.Error(), http.StatusForbidden)
		})).ServeHTTP(w, r)
	case r.URL.Path+"/" == root:
		v.own(http.RedirectHandler(root, http.StatusPermanentRedirect)).ServeHTTP(w, r)
	default:
		v.server.ServeHTTP(w, r)
	}
}

// login implements ui.TokenConfig.Login.
func (v *View) login(r *http.Request, token string) (user string, err error) {
	if token == "" {
		return "", errors.New("the token is missing")
	}
	who, err := v.face.Guard.IdentifyBy(r, token)
	if err == nil {
		audit.From(r.Context()).Who = who.Who
	}
	return who.Who, err
}

var (
	errNoTokens = errors.New("the daemon serves its view only where it asks for tokens: run 'forkd ui'")
	errPlain    = errors.New("the view needs TLS at this address, because others on the network could read the token: start " +
		"the daemon with --tls-cert and --tls-key, or run 'forkd ui'")
)

// origin returns the origin at which a browser sees the view. Over TLS, that is the name for which
// the browser has accepted the daemon's certificate. Without TLS, a browser of this host uses a
// name of loopback, and a reverse proxy on this host, which terminates TLS, uses one of Face.Hosts.
func (v *View) origin(r *http.Request) (string, error) {
	if v.face.Guard == nil || v.face.Guard.Tokens == nil {
		return "", errNoTokens
	}
	at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return "", errNoTokens
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	known := slices.ContainsFunc(v.face.Hosts, func(name string) bool { return strings.EqualFold(name, host) })
	switch {
	case r.TLS != nil && (known || namedBy(r.TLS.ServerName, host)):
		return "https://" + r.Host, nil
	case r.TLS == nil && !at.IP.IsLoopback():
		return "", errPlain
	case r.TLS == nil && known:
		return "https://" + r.Host, nil
	case r.TLS == nil && auth.IsLoopback(host):
		return "http://" + r.Host, nil
	}
	return "", fmt.Errorf("host %q: the view is not served under this name: use a name in the daemon's certificate, or "+
		"one of --allow-host", r.Host)
}

// namedBy reports whether the certificate that a client has accepted over TLS is for the given
// host. The parameter serverName is the server name that the client sent in the TLS handshake.
// Clients send no server name if the host is an address.
func namedBy(serverName, host string) bool {
	if serverName == "" {
		return net.ParseIP(host) != nil
	}
	return strings.EqualFold(serverName, strings.TrimSuffix(host, "."))
}

// bodyTime limits the time for the body of a request that the view answers itself.
const bodyTime = 10 * time.Second

// own returns a handler for the requests that the view answers itself. The handler audits and
// limits them in the same way as requests to open routes of the API. The path of a session is known
// only to its browser, so the audit log omits it.
func (v *View) own(h http.Handler) http.Handler {
	return v.face.Audited(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := audit.From(r.Context())
		e.Path, e.Route = root, r.Method+" "+root
		if r.Method != http.MethodGet && r.Method != http.MethodPost && r.Method != http.MethodDelete {
			e.Route = root
		}
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime)) // fails only in tests
		v.face.Open.Serve(w, r, func(w http.ResponseWriter, r *http.Request) error {
			h.ServeHTTP(w, r)
			return nil
		}, v.face.Fail)
	}))
}
