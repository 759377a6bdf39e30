package face

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
)

// CheckOrigin refuses a request that may come from a web page, so that a page cannot use the daemon
// through a browser on this host. If the daemon requires no credentials over TCP, the Host header
// must name this host (see auth.CheckHost). CheckOrigin also refuses requests that a browser sends
// for a page of another origin, even requests that only read, because the page must not see the
// answer. Programs other than browsers send no Origin header and are not affected. The last
// argument lists further names of this host, in addition to the names in the daemon's
// configuration.
func (f *Face) CheckOrigin(r *http.Request, hosts ...string) error {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if ok && addr.Network() == "tcp" && !f.Guard.Demands() {
		if err := auth.CheckHost(r.Host, append(hosts, f.Hosts...)); err != nil {
			return NewError(http.StatusForbidden, err.Error())
		}
	}
	asPost := *r // checked as a POST, because the check lets GET and HEAD pass
	asPost.Method = http.MethodPost
	if http.NewCrossOriginProtection().Check(&asPost) != nil {
		return NewError(http.StatusForbidden, "cross-origin request from a browser refused")
	}
	return nil
}

// Refuse sends the answer for a request that CheckOrigin or the guard has refused.
func Refuse(w http.ResponseWriter, err error) {
	LetGo(w)
	WriteProblem(w, err)
}

// LetGo makes the server close the connection after the answer. The server then does not wait for a
// body that may never arrive, so a refused client holds no resources.
func LetGo(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // fails only in tests
}

// Audited writes an audit line for each request that h serves, and counts the request. Requests are
// counted by their routes in the API's document, because paths would let clients make any number of
// counters.
func (f *Face) Audited(h http.Handler) http.Handler {
	named := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if peer, ok := auth.PeerFrom(r.Context()); ok {
			audit.From(r.Context()).Remote = fmt.Sprintf("unix:%d", peer.PID)
		}
		h.ServeHTTP(w, r)
	})
	return f.Audit.Handler(named, func(e audit.Entry, err error) {
		if err != nil {
			f.Log.Error("audit", "error", err)
		}
		if f.Requests != nil {
			f.Requests(e.Route, e.Status, time.Duration(e.LatencyUS)*time.Microsecond)
		}
	})
}
