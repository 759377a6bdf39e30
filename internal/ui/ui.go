// Package ui serves the view of a daemon: a web page with the tree of snapshots and sandboxes. It
// serves the browser of one user of this host.
//
// The page calls the daemon's REST API through this server, which sends the requests with the
// credentials of the command line. The page never receives these credentials. A browser gets in
// with a one-time code, which it exchanges for a session cookie. Only the routes in routes.go can
// be called. In particular, no route returns a page of a guest, because that page would have the
// origin of the view, and with it all rights of the session.
//
// A browser runs programs of other people. So the server refuses requests of pages with another
// origin (see guard.go), and the page may only load and run its own files (see policy).
package ui

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"
)

// Config configures a Server.
type Config struct {
	Host   string            // host:port of the listener, as browsers send it in the header Host
	Daemon http.RoundTripper // sends requests to the daemon, with credentials
	Name   string            // name of the daemon, shown in the page
	Now    func() time.Time  // clock; nil: time.Now
}

// Server serves the view. It implements http.Handler.
type Server struct {
	cfg   Config
	entry *entry
	api   *httputil.ReverseProxy
}

// New returns a Server.
func New(cfg Config) *Server {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Server{cfg: cfg, entry: newEntry(cfg.Now)}
	s.api = &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      cfg.Daemon,
		FlushInterval:  -1, // the streams of the API must not wait for a full buffer
		ModifyResponse: confine,
		ErrorHandler:   s.unreachable,
		ErrorLog:       log.New(io.Discard, "", 0), // its messages may quote guests, and the page shows errors
	}
	return s
}

// URL returns an address that lets one browser in, once, within the next codeLife.
func (s *Server) URL() string { return "http://" + s.cfg.Host + "/?code=" + s.entry.newCode() }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	if err := s.checkHost(r); err != nil {
		refuse(w, http.StatusForbidden, "wrong_host", err.Error())
		return
	}
	if r.URL.Path == "/" {
		s.enter(w, r)
		return
	}
	path, ok := strings.CutPrefix(r.URL.Path, s.entry.path)
	if !ok {
		refuse(w, http.StatusNotFound, "not_found", "no such page: open the address that 'forkd ui' prints")
		return
	}
	until, ok := s.entry.session(r)
	if !ok {
		refuse(w, http.StatusUnauthorized, "no_session", "the session has ended: run 'forkd ui' again")
		return
	}
	if err := s.checkSource(r); err != nil {
		refuse(w, http.StatusForbidden, "wrong_source", err.Error())
		return
	}
	// Streams end with the session.
	ctx, cancel := context.WithDeadline(r.Context(), until)
	defer cancel()
	r = r.Clone(ctx)
	r.URL.Path, r.URL.RawPath = "/"+path, ""
	switch {
	case path == "daemon":
		writeJSON(w, http.StatusOK, map[string]string{"name": s.cfg.Name})
	case strings.HasPrefix(path, "v1/") || path == "version" || path == "readyz":
		if !routed(r) {
			refuse(w, http.StatusNotFound, "not_found", "the view does not call "+r.Method+" "+r.URL.Path)
			return
		}
		w.Header().Set("Content-Security-Policy", apiPolicy)
		s.api.ServeHTTP(w, r)
	default:
		serveAsset(w, r)
	}
}

// enter exchanges a one-time code for a session. The answer is a page that opens the view, and not
// a redirect. A browser follows a redirect on behalf of the page that caused the request. If that
// page has another origin, the browser would not send the new cookie.
func (s *Server) enter(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	if r.Method != http.MethodGet {
		refuse(w, http.StatusMethodNotAllowed, "method", "only GET is possible here")
		return
	}
	cookie, err := s.entry.redeem(r.URL.Query().Get("code"))
	if err != nil {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(closedPage))
		return
	}
	http.SetCookie(w, cookie)
	h.Set("Refresh", "0; url="+s.entry.path)
	_, _ = w.Write([]byte(openPage))
}

const (
	page       = `<!doctype html><html lang="en"><meta charset="utf-8"><title>forkd</title><link rel="icon" href="data:,"><p>`
	openPage   = page + `Opening the view …`
	closedPage = page + `This address is not valid any more: each one lets in one browser, once. Run <code>forkd ui</code> again.`
)

// rewrite makes the request to the daemon. Only headers that the API uses are sent: the daemon must
// not see the browser's cookies, and refuses requests with an Origin.
func rewrite(p *httputil.ProxyRequest) {
	header := http.Header{}
	for _, name := range []string{"Accept", "Content-Type", "Idempotency-Key", "Last-Event-ID", "Connection", "Upgrade",
		"Sec-Websocket-Key", "Sec-Websocket-Version", "Sec-Websocket-Extensions", "Sec-Websocket-Protocol"} {
		if values := p.Out.Header.Values(name); len(values) > 0 {
			header[name] = values
		}
	}
	p.Out.Header = header
	p.Out.URL = &url.URL{Scheme: "http", Host: "forkd", Path: p.In.URL.Path, RawQuery: p.In.URL.RawQuery}
	p.Out.Host = ""
}

// confine changes an answer of the API: it removes the headers that this server sets itself, and
// makes a browser save the answer. The answer may contain a guest's bytes, which a browser must not
// show as a page.
func confine(r *http.Response) error {
	if r.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	for name := range security {
		r.Header.Del(name)
	}
	r.Header.Del("Set-Cookie")
	r.Header.Set("Content-Disposition", "attachment")
	return nil
}

// unreachable answers a request that did not reach the daemon.
func (s *Server) unreachable(w http.ResponseWriter, _ *http.Request, err error) {
	if asked, ok := errors.AsType[*url.Error](err); ok {
		err = asked.Err
	}
	refuse(w, http.StatusBadGateway, "daemon_away", "no daemon answers at "+s.cfg.Name+": "+err.Error())
}

// refuse sends an error in the form of the API's errors.
func refuse(w http.ResponseWriter, status int, code, detail string) {
	writeJSON(w, status, map[string]any{"status": status, "code": code, "detail": detail})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // fails only if the client has left
}
