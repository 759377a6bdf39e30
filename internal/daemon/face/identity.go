package face

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
)

// CheckOrigin refuses two kinds of requests over TCP: requests that carry another host's name and
// need no token (see auth.CheckHost), and requests that a web page of another origin makes a
// browser on this host send. A daemon on loopback without a token would obey such a page. Requests
// that only read are refused too, because the page must not see the answer either. Programs send no
// Origin and are not affected. hosts are names of this host in addition to those in the daemon's
// configuration.
func (f *Face) CheckOrigin(r *http.Request, hosts ...string) error {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if ok && addr.Network() == "tcp" && !f.Guard.Demands() {
		if err := auth.CheckHost(r.Host, append(hosts, f.Hosts...)); err != nil {
			return NewError(http.StatusForbidden, err.Error())
		}
	}
	asPost := *r // because the check lets safe methods pass
	asPost.Method = http.MethodPost
	if http.NewCrossOriginProtection().Check(&asPost) != nil {
		return NewError(http.StatusForbidden, "cross-origin request from a browser refused")
	}
	return nil
}

// Refuse answers a request that its client may not make.
func Refuse(w http.ResponseWriter, err error) {
	LetGo(w)
	WriteProblem(w, err)
}

// LetGo makes the connection close after the answer to a stranger, so that the stranger holds no
// resources: the server does not wait for a body that may never arrive.
func LetGo(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // fails only in tests
}

// Audited writes an audit line for each request that h serves, and counts it. Counts are by the
// routes of the API's document, so that their number does not depend on what clients send.
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
