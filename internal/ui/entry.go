package ui

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"net/http"
	"sync"
	"time"
)

// How long a code can be exchanged for a session, and how long a session is valid.
const (
	codeLife    = 10 * time.Minute
	sessionLife = 12 * time.Hour
)

// maxCodes and maxSessions bound the memory for codes and sessions. If there are more, the oldest
// code or session is dropped.
const (
	maxCodes    = 16
	maxSessions = 16
)

const cookieName = "forkd-view"

// entry lets browsers in. It holds one-time codes and sessions, as digests.
type entry struct {
	// path is the path of the view: a slash, a random name and a slash. Browsers send a cookie of
	// 127.0.0.1 to the servers of all ports. With this path as the path of the cookie, a server at
	// another port gets the cookie only for requests to the same path. That server does not know
	// the random name.
	path string
	now  func() time.Time

	mu sync.Mutex
	// +checklocks:mu
	codes []secret
	// +checklocks:mu
	sessions []secret
}

// secret is a code or the value of a session's cookie.
type secret struct {
	digest [sha256.Size]byte
	until  time.Time
}

func newEntry(now func() time.Time) *entry { return &entry{path: "/" + rand.Text() + "/", now: now} }

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
	i := e.find(e.codes, code)
	if i < 0 {
		return nil, errCode
	}
	e.codes = append(e.codes[:i:i], e.codes[i+1:]...)
	value := rand.Text() + rand.Text()
	e.sessions = append(e.sessions, secret{sha256.Sum256([]byte(value)), e.now().Add(sessionLife)})
	e.sessions = e.sessions[max(0, len(e.sessions)-maxSessions):]
	return &http.Cookie{Name: cookieName, Value: value, Path: e.path, HttpOnly: true,
		SameSite: http.SameSiteStrictMode}, nil
}

// session returns the end of the session of a request.
func (e *entry) session(r *http.Request) (until time.Time, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range r.CookiesNamed(cookieName) {
		if i := e.find(e.sessions, c.Value); i >= 0 {
			return e.sessions[i].until, true
		}
	}
	return until, false
}

// find returns the index of a secret that has not expired, or -1. Only digests are compared, so the
// time of a comparison says nothing about the secret.
func (e *entry) find(among []secret, text string) int {
	digest, now := sha256.Sum256([]byte(text)), e.now()
	for i, s := range among {
		if s.digest == digest && now.Before(s.until) {
			return i
		}
	}
	return -1
}
