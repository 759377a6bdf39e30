package face

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
)

// CheckOrigin refuses requests over TCP that carry another host's name, unless they need a token (see
// auth.CheckHost), and what a web page of another origin makes a browser on this host send: a daemon on
// loopback without a token would obey it. Requests that only read are refused like the others: an answer
// is not the page's to see either. Programs send no Origin and are not concerned. hosts are names of this
// host besides those that the daemon was given.
func (f *Face) CheckOrigin(r *http.Request, hosts ...string) error {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if ok && addr.Network() == "tcp" && !f.Guard.Demands() {
		if err := auth.CheckHost(r.Host, append(hosts, f.Hosts...)); err != nil {
			return NewError(http.StatusForbidden, err.Error())
		}
	}
	asPost := *r // the check lets safe methods pass
	asPost.Method = http.MethodPost
	if http.NewCrossOriginProtection().Check(&asPost) != nil {
		return NewError(http.StatusForbidden, "cross-origin request from a browser refused")
	}
	return nil
}

// Refuse answers a request of somebody who may not make it.
func Refuse(w http.ResponseWriter, err error) {
	LetGo(w)
	WriteProblem(w, err)
}

// LetGo makes the connection end with the answer to a stranger, who keeps nothing of the daemon:
// the server does not wait for a body that may never come.
func LetGo(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // a connection without deadlines is a test's
}

// Audited writes a line for each request that h serves, and counts it. Of routes there are as many as in
// the document, whatever clients ask for.
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
