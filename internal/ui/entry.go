package ui

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// How long a code can be exchanged for a session, and how long a session is valid.
const (
	codeLife    = 10 * time.Minute
	sessionLife = 12 * time.Hour
)

// maxCodes and maxSessions bound the memory for codes, and for the sessions of one user. If there
// are more, the oldest code or session is dropped.
const (
	maxCodes    = 16
	maxSessions = 16
)

const cookieName = "forkd-view"

// entry lets browsers in. It keeps the digests of one-time codes and cookies. A session also keeps its
// user's token.
type entry struct {
	root string // path below which the view is served, with a slash at its end
	now  func() time.Time

	mu sync.Mutex
	// +checklocks:mu
	codes []secret
	// +checklocks:mu
	sessions []session
}

// secret is a code or the value of a session's cookie.
type secret struct {
	digest [sha256.Size]byte
	until  time.Time
}

// session belongs to one browser.
type session struct {
	secret
	// path is the path of the session's pages: the root, a random name and a slash. Browsers send a
	// cookie of 127.0.0.1 to the servers of all ports. With this path as the path of the cookie, a
	// server at another port gets the cookie only for requests to the same path. That server does
	// not know the random name.
	path  string
	user  string // name of the user, as TokenConfig.Login returns it; empty if the session was made with a code
	token string // token of the user; empty if the session was made with a code
}

// nameLength is the length of a random name in a path.
var nameLength = len(rand.Text())

// split returns the part of a request's path below the root and, if there is one, below the path of
// a session.
func (e *entry) split(path string) (below string, ok bool) {
	below, ok = strings.CutPrefix(path, e.root)
	if name, rest, found := strings.Cut(below, "/"); found && len(name) == nameLength && name == strings.ToUpper(name) {
		below = rest
	}
	return below, ok
}

// newCode returns a new one-time code.
func (e *entry) newCode() string {
	code := rand.Text()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.codes = append(e.codes, secret{sha256.Sum256([]byte(code)), e.now().Add(codeLife)})
	e.codes = e.codes[max(0, len(e.codes)-maxCodes):]
	return code
}

var errCode = errors.New("the code is wrong, was used, or has expired")

// redeem exchanges a code for the cookie of a new session.
func (e *entry) redeem(code string) (*http.Cookie, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.IndexFunc(e.codes, e.matches(code))
	if i < 0 {
		return nil, errCode
	}
	e.codes = slices.Delete(e.codes, i, i+1)
	return e.addLocked(session{}), nil
}

// logIn returns the cookie of a new session for a user.
func (e *entry) logIn(user, token string) *http.Cookie {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.addLocked(session{user: user, token: token})
}

// addLocked adds a session with a new cookie and a new path, and returns the cookie. It removes
// sessions that have expired.
//
// +checklocks:e.mu
func (e *entry) addLocked(s session) *http.Cookie {
	value := rand.Text() + rand.Text()
	s.secret = secret{sha256.Sum256([]byte(value)), e.now().Add(sessionLife)}
	s.path = e.root + rand.Text() + "/"
	oldest, same := -1, 0
	e.sessions = slices.DeleteFunc(e.sessions, func(o session) bool { return !e.now().Before(o.until) })
	for i, o := range e.sessions {
		if o.user != s.user {
			continue
		}
		if same++; oldest < 0 {
			oldest = i
		}
	}
	if same >= maxSessions {
		e.sessions = slices.Delete(e.sessions, oldest, oldest+1)
	}
	e.sessions = append(e.sessions, s)
	return &http.Cookie{Name: cookieName, Value: value, Path: s.path, HttpOnly: true,
		SameSite: http.SameSiteStrictMode}
}

// session returns the session that a request's cookie names. The path of the request must be below the
// session's path.
func (e *entry) session(r *http.Request) (s session, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range r.CookiesNamed(cookieName) {
		matches := e.matches(c.Value)
		i := slices.IndexFunc(e.sessions, func(s session) bool { return matches(s.secret) })
		if i >= 0 && strings.HasPrefix(r.URL.Path, e.sessions[i].path) {
			return e.sessions[i], true
		}
	}
	return s, false
}

// has(s) reports whether the session s still exists.
func (e *entry) has(s session) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.sessions, func(o session) bool { return o.digest == s.digest })
}

// end removes a session, so that its cookie is no longer valid.
func (e *entry) end(ended session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sessions = slices.DeleteFunc(e.sessions, func(s session) bool { return s.digest == ended.digest })
}

// matches returns a function that reports whether a secret is the given text and has not expired.
// It compares only digests, so the time of a comparison says nothing about the secret.
func (e *entry) matches(text string) func(secret) bool {
	digest, now := sha256.Sum256([]byte(text)), e.now()
	return func(s secret) bool { return s.digest == digest && now.Before(s.until) }
}
