// Package ui serves the view of a daemon: a web page with the tree of snapshots and sandboxes.
//
// The command 'forkd ui' serves it to the browser of one user of this host. This browser gets in
// with a one-time code (New). A daemon with tokens serves it to browsers whose users have a token
// (NewForTokens). Either way the browser then has a session cookie, and the page never receives
// credentials again.
//
// The page calls the daemon's REST API through this server, which sends the requests with the
// credentials of the CLI or of the session. Only the routes in routes.go can be called. In
// particular, no route returns a page of a guest, because that page would have the origin of the
// view, and with it all rights of the session.
//
// A browser runs programs of other people. So the server refuses requests of pages with another
// origin (see guard.go), and the page may only load and run its own files (see policy).
package ui

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Config configures the Server of one user.
type Config struct {
	Host   string            // host:port of the listener, as browsers send it in the header Host
	Daemon http.RoundTripper // sends requests to the daemon, with credentials
	Name   string            // name of the daemon, shown in the page
	// Doctor returns the findings of 'forkd doctor' about this host, as a value for JSON; nil: the
	// daemon is on another host.
	Doctor func(context.Context) any
	Now    func() time.Time // clock; nil: time.Now
}

// TokenConfig configures the Server of a daemon with tokens.
type TokenConfig struct {
	Root string       // path below which the view is served, with a slash at its end
	API  http.Handler // the daemon's API
	// Origin returns the origin at which a request's browser sees the view, such as
	// "https://forkd.example.com". It returns an error for a request that must not reach the view.
	Origin func(*http.Request) (string, error)
	// Login returns the name of the user who has a token, or an error if the token is not valid. It
	// is called again for each request of a session, and while an answer lasts.
	Login func(r *http.Request, token string) (user string, err error)
	// Own wraps the handler of requests that are not passed to the API.
	Own func(http.Handler) http.Handler
	Now func() time.Time // clock; nil: time.Now
}

// Server serves the view. It implements http.Handler.
type Server struct {
	TokenConfig // Login is nil if browsers get in with codes
	name        string
	address     string                    // origin of the view of one user
	doctor      func(context.Context) any // as in Config
	diagnosing  sync.Mutex                // held during a call of doctor, which starts processes
	entry       *entry
	own         http.Handler // answers requests that are not passed to the API
}

// New returns the Server of one user.
func New(cfg Config) *Server {
	s := &Server{name: cfg.Name, address: "http://" + cfg.Host, doctor: cfg.Doctor}
	api := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", "forkd", ""
		},
		Transport:     cfg.Daemon,
		FlushInterval: -1, // the streams of the API must not wait for a full buffer
		ErrorHandler:  s.unreachable,
		ErrorLog:      log.New(io.Discard, "", 0), // its messages may quote guests, and the page shows errors
	}
	s.start(TokenConfig{Root: "/", API: api, Now: cfg.Now, Origin: func(r *http.Request) (string, error) {
		if r.Host != cfg.Host {
			return "", fmt.Errorf("host %q: the view is served as %s only", r.Host, cfg.Host)
		}
		return s.address, nil
	}})
	return s
}

// NewForTokens returns the Server of a daemon with tokens.
func NewForTokens(cfg TokenConfig) *Server {
	s := &Server{}
	s.start(cfg)
	return s
}

func (s *Server) start(cfg TokenConfig) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s.TokenConfig, s.entry = cfg, &entry{root: cfg.Root, now: cfg.Now}
	s.own = http.HandlerFunc(s.answer)
	if cfg.Own != nil {
		s.own = cfg.Own(s.own)
	}
}

// URL returns an address that lets one browser into the Server of one user. The address works only
// once, and expires after the time codeLife.
func (s *Server) URL() string { return s.address + "/?code=" + s.entry.newCode() }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	below, ok := s.entry.split(r.URL.Path)
	if !ok || !strings.HasPrefix(below, "v1/") && below != "version" && below != "readyz" {
		s.own.ServeHTTP(w, r)
		return
	}
	session, no := s.check(r)
	inner := s.inner(r, "/"+below, session)
	if no != nil || !routed(inner) {
		s.own.ServeHTTP(w, r)
		return
	}
	ctx, cancel := s.during(r, session)
	defer cancel()
	// The daemon may begin its answer before the proxy has read the end of the request. Without
	// full duplex, package http would then close the request's body, and the proxy would cut the
	// answer off.
	_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/2 always has it
	answer := &confined{ResponseWriter: w}
	s.API.ServeHTTP(answer, inner.WithContext(ctx))
	answer.begin()
}

// answer answers a request that is not passed to the API.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	below, ok := s.entry.split(r.URL.Path)
	asset, login := "/"+below, below == "session" && r.Method == http.MethodPost
	var session session
	var no *refusal
	switch {
	case !ok:
		no = &refusal{http.StatusNotFound, "not_found", "no such page"}
	case s.Login == nil && r.URL.Path == s.Root: // may come from another page, which has the code
		_, no = s.originOf(r)
	case s.Login != nil && (login || isAsset(asset)): // a browser without a session gets the form
		no = s.checkPage(r)
	default:
		session, no = s.check(r)
	}
	switch {
	case no != nil:
		no.send(w, r)
	case s.Login == nil && r.URL.Path == s.Root:
		s.enter(w, r)
	case s.Login != nil && login:
		s.logIn(w, r)
	case below == "daemon":
		writeJSON(w, http.StatusOK, map[string]any{"name": cmp.Or(session.user, s.name), "doctor": s.doctor != nil})
	case below == "doctor" && s.doctor != nil && r.Method == http.MethodGet:
		s.diagnosing.Lock()
		defer s.diagnosing.Unlock()
		writeJSON(w, http.StatusOK, s.doctor(r.Context()))
	case s.Login != nil && below == "session" && r.Method == http.MethodDelete:
		s.entry.end(session)
		w.WriteHeader(http.StatusNoContent)
	case isAsset(asset) && r.Method == http.MethodGet:
		serveAsset(w, asset)
	default:
		refuse(w, r, http.StatusNotFound, "not_found", "the view does not call "+r.Method+" "+asset)
	}
}

// refusal is an answer to a request that the server refuses.
type refusal struct {
	status       int
	code, detail string
}

func (no *refusal) send(w http.ResponseWriter, r *http.Request) {
	refuse(w, r, no.status, no.code, no.detail)
}

func (s *Server) originOf(r *http.Request) (string, *refusal) {
	origin, err := s.Origin(r)
	if err != nil {
		return "", &refusal{http.StatusForbidden, "wrong_host", err.Error()}
	}
	return origin, nil
}

// checkPage refuses requests that come from a page outside of the view.
func (s *Server) checkPage(r *http.Request) *refusal {
	origin, no := s.originOf(r)
	if no != nil {
		return no
	}
	if err := checkSource(r, origin); err != nil {
		return &refusal{http.StatusForbidden, "wrong_source", err.Error()}
	}
	return nil
}

// check returns the session of a request, or the reason to refuse the request.
func (s *Server) check(r *http.Request) (session, *refusal) {
	if no := s.checkPage(r); no != nil {
		return session{}, no
	}
	found, ok := s.entry.session(r)
	if ok && s.lasts(r, found) {
		return found, nil
	}
	if ok {
		s.entry.end(found)
	}
	if s.Login == nil {
		return session{}, &refusal{http.StatusUnauthorized, "no_session", "the session has ended: run 'forkd ui' again"}
	}
	return session{}, &refusal{http.StatusUnauthorized, "want_token", "the session has ended: open /ui, and enter a token"}
}

// lasts reports whether the token of a session still belongs to the session's user.
func (s *Server) lasts(r *http.Request, of session) bool {
	if s.Login == nil {
		return true
	}
	user, err := s.Login(r, of.token)
	return err == nil && user == of.user
}

// checkInterval is the time between two checks of a session's token while an answer lasts.
const checkInterval = 2 * time.Second

// during returns the context of an answer. The context ends at the latest when the session ends.
func (s *Server) during(r *http.Request, of session) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithDeadline(r.Context(), of.until)
	if s.Login != nil {
		go func() {
			tick := time.NewTicker(checkInterval)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					if !s.lasts(r, of) || !s.entry.has(of) {
						cancel()
						return
					}
				}
			}
		}()
	}
	return ctx, cancel
}

// inner returns a request for the API. Only headers that the API uses are sent: the API must not
// see the browser's cookies, and refuses requests with an Origin.
func (s *Server) inner(r *http.Request, path string, of session) *http.Request {
	header := http.Header{}
	for _, name := range []string{"Accept", "Content-Type", "Idempotency-Key", "Last-Event-ID", "User-Agent",
		"Connection", "Upgrade", "Sec-Websocket-Key", "Sec-Websocket-Version", "Sec-Websocket-Extensions",
		"Sec-Websocket-Protocol"} {
		if values := r.Header.Values(name); len(values) > 0 {
			header[name] = values
		}
	}
	if of.token != "" {
		header.Set("Authorization", "Bearer "+of.token)
	}
	inner := r.WithContext(r.Context())
	inner.Header, inner.URL = header, &url.URL{Path: path, RawQuery: r.URL.RawQuery}
	inner.RequestURI = inner.URL.RequestURI()
	return inner
}

// logIn exchanges a token for a session.
func (s *Server) logIn(w http.ResponseWriter, r *http.Request) {
	var ask struct{ Token string }
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxLogin)).Decode(&ask); err != nil {
		refuse(w, r, http.StatusBadRequest, "bad_request", "want a JSON object with a token")
		return
	}
	user, err := s.Login(r, ask.Token)
	if err != nil {
		refuse(w, r, http.StatusUnauthorized, "wrong_token", err.Error())
		return
	}
	cookie := s.entry.logIn(user, ask.Token)
	origin, _ := s.Origin(r) // checkPage has checked it
	cookie.Secure = strings.HasPrefix(origin, "https:")
	http.SetCookie(w, cookie)
	writeJSON(w, http.StatusOK, map[string]string{"path": cookie.Path})
}

// maxLogin bounds the body of a login, in bytes.
const maxLogin = 4 << 10

// enter exchanges a one-time code for a session. The answer is a page that opens the view, and not
// a redirect. A browser follows a redirect on behalf of the page that caused the request. If that
// page has another origin, the browser would not send the new cookie.
func (s *Server) enter(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	if r.Method != http.MethodGet {
		refuse(w, r, http.StatusMethodNotAllowed, "method", "only GET is possible here")
		return
	}
	cookie, err := s.entry.redeem(r.URL.Query().Get("code"))
	if err != nil {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(closedPage))
		return
	}
	http.SetCookie(w, cookie)
	h.Set("Refresh", "0; url="+cookie.Path)
	_, _ = w.Write([]byte(openPage))
}

const (
	page       = `<!doctype html><html lang="en"><meta charset="utf-8"><title>forkd</title><link rel="icon" href="data:,"><p>`
	openPage   = page + `Opening the view …`
	closedPage = page + `This address is not valid any more: each one lets in one browser, once. Run <code>forkd ui</code> again.`
)

// confined is the http.ResponseWriter of the API. It tells the browser to save the answer, and
// gives the answer the headers of this server. The answer may contain a guest's bytes, which a
// browser must not show as a page.
type confined struct {
	http.ResponseWriter
	begun bool
}

// WriteHeader implements http.ResponseWriter.
func (c *confined) WriteHeader(status int) {
	if status >= http.StatusOK && !c.begun {
		c.begun = true
		h := c.Header()
		secure(h)
		h.Set("Content-Security-Policy", apiPolicy)
		h.Set("Content-Disposition", "attachment")
		h.Del("Set-Cookie")
	}
	c.ResponseWriter.WriteHeader(status)
}

// begin sends the header of an answer without a body.
func (c *confined) begin() {
	if !c.begun {
		c.WriteHeader(http.StatusOK)
	}
}

// Write implements http.ResponseWriter.
func (c *confined) Write(p []byte) (int, error) {
	c.begin()
	return c.ResponseWriter.Write(p)
}

// FlushError is called by http.ResponseController.
func (c *confined) FlushError() error {
	c.begin()
	return http.NewResponseController(c.ResponseWriter).Flush()
}

// Flush implements http.Flusher.
func (c *confined) Flush() { _ = c.FlushError() } // Flush cannot return the error

// Hijack implements http.Hijacker. A hijacked connection has no answer to confine.
func (c *confined) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c.begun = true
	return http.NewResponseController(c.ResponseWriter).Hijack()
}

// Unwrap lets http.ResponseController reach the connection.
func (c *confined) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// unreachable answers a request that did not reach the daemon.
func (s *Server) unreachable(w http.ResponseWriter, r *http.Request, err error) {
	if asked, ok := errors.AsType[*url.Error](err); ok {
		err = asked.Err
	}
	refuse(w, r, http.StatusBadGateway, "daemon_away", "no daemon answers at "+s.name+": "+err.Error())
}

// refuse sends an error in the form of the API's errors. If the request has a body, the server closes
// the connection, because the body might never arrive.
func refuse(w http.ResponseWriter, r *http.Request, status int, code, detail string) {
	if r.ContentLength != 0 {
		w.Header().Set("Connection", "close")
		_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // fails only in tests
	}
	writeJSON(w, status, map[string]any{"status": status, "code": code, "detail": detail})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // fails only if the client has left
}
