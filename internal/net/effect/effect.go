// Package effect holds back the requests of one sandbox that could change something at a server. It
// decides which requests these are, answers them in place of the server, and lists them.
//
// The package sees requests only after package inject has parsed them and has checked their host.
// It neither connects to servers nor knows policies. If the requests of a connection to a held host
// cannot be read, package stack refuses the connection.
package effect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/proto/netproto"
)

// Limits of a sandbox.
const (
	maxWaiting = 32               // requests that wait at the same time
	waitTime   = 15 * time.Minute // time for which a request waits
	bodyTime   = 30 * time.Second // time limit for the part of a body that is kept
	drainTime  = 10 * time.Minute // time limit for the rest of the body of a recorded request
	lookTime   = time.Second      // interval of checks whether the guest of a waiting request has gone
)

// Sizes of a listed request, in bytes.
const (
	maxMethod = 64
	overhead  = 256 // memory of a request in addition to its texts
)

// Header is the header of answers to held requests. Its value is the request's outcome.
const Header = "Forkd-Held"

// List holds the requests of one sandbox. Its methods may be called concurrently.
type List struct {
	// take(bytes, own) reserves memory in the room that all sandboxes share, where own is the total
	// of this list, including these bytes. It returns false if there is too little room.
	take func(bytes, own int64) bool
	give func(bytes int64)
	wait time.Duration // waitTime, except in tests

	mu      sync.Mutex
	hold    netproto.Hold
	ended   chan struct{} // closed when the hold ends; a new channel for each hold
	since   time.Time
	last    uint64 // id of the newest request
	bytes   int64  // memory of the list
	waiting int
	missed  uint64
	list    []*netproto.Effect
}

// New returns an empty list. The list calls take(bytes, own) before it lists a request. Close calls
// give(bytes).
func New(hold netproto.Hold, take func(bytes, own int64) bool, give func(bytes int64)) *List {
	return &List{take: take, give: give, wait: waitTime, hold: hold, ended: make(chan struct{}), since: time.Now()}
}

// Set replaces the hold. If the new hold is off, waiting requests go to their servers. If the new
// hold is on, they keep waiting. If the holds differ, the caller resets the connections of the
// waiting requests.
func (l *List) Set(hold netproto.Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hold.On() && !hold.On() {
		close(l.ended)
		l.ended = make(chan struct{})
	}
	l.hold = hold
}

// Close gives back the memory of the list. The list must not be used afterwards.
func (l *List) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.give(l.bytes)
	l.bytes, l.list = 0, nil
}

// Effects returns the listed requests.
func (l *List) Effects() netproto.Effects {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := netproto.Effects{Since: l.since.Unix(), Missed: l.missed}
	for _, e := range l.list {
		m.List = append(m.List, *e)
	}
	return m
}

// Acts reports whether a request may change something at its server. It judges by the request
// alone. A request does not act if it has no body and its method is safe (RFC 9110 §9.2.1). There
// are two exceptions. A request that changes the protocol, for example to WebSocket, acts, because
// this process cannot read the messages that follow. A request with a header that names another
// method acts, because some servers obey that header.
func Acts(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
	default:
		return true
	}
	if r.ContentLength != 0 || len(r.TransferEncoding) > 0 || len(r.Header["Upgrade"]) > 0 {
		return true
	}
	for name := range r.Header {
		if strings.Contains(strings.ToLower(name), "method") && name != "Access-Control-Request-Method" {
			return true
		}
	}
	return false
}

// Pass reports whether a request may go to its server. If not, Pass has answered it. The URL is the
// request's complete URL. A request that waits blocks Pass. The result of open() says whether both
// directions of the request's connection are still open.
func (l *List) Pass(w http.ResponseWriter, r *http.Request, url string, open func() bool) bool {
	l.mu.Lock()
	answer, ended := l.hold.Answer, l.ended
	l.mu.Unlock()
	if answer == 0 || !Acts(r) {
		return true
	}
	e, err := read(w, r, url)
	if err != nil {
		w.Header().Set("Connection", "close")
		http.Error(w, "forkd: the request's body is not complete", http.StatusRequestTimeout)
		return false
	}
	e.Outcome = map[netproto.Answer]string{netproto.AnswerRefuse: netproto.OutcomeRefused,
		netproto.AnswerRecord: netproto.OutcomeRecorded, netproto.AnswerWait: netproto.OutcomeWaiting}[answer]
	listed := l.add(e)
	switch {
	case answer == netproto.AnswerRefuse:
		refuse(w, http.StatusForbidden, e.Outcome, "requests that may change something at "+r.Host+
			" are held until this sandbox is promoted or released")
	case !listed:
		refuse(w, http.StatusServiceUnavailable, netproto.OutcomeRefused, "this sandbox has too many held requests")
	case answer == netproto.AnswerRecord:
		l.record(w, r, e)
	default:
		return l.await(w, r, e, ended, open)
	}
	return false
}

func refuse(w http.ResponseWriter, status int, outcome, text string) {
	w.Header().Set(Header, outcome)
	http.Error(w, "forkd: "+text, status)
}

// record answers a request that is only recorded. It first reads the rest of the request's body,
// because clients do not expect an answer before they have sent the whole body.
func (l *List) record(w http.ResponseWriter, r *http.Request, e *netproto.Effect) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTime)) // never fails
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		l.set(e, netproto.OutcomeGivenUp)
		w.Header().Set("Connection", "close")
		refuse(w, http.StatusRequestTimeout, netproto.OutcomeGivenUp, "the request's body is not complete")
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	w.Header().Set(Header, netproto.OutcomeRecorded)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_ = json.NewEncoder(w).Encode(map[string]any{"forkd": netproto.OutcomeRecorded, "effect": e.ID,
		"message": "forkd has recorded this request and has not sent it"}) // an error means that the guest is gone
}

// await waits until the hold ends. It reports whether the request may then go to its server.
//
// While the request's body is unread, or after the guest has sent another request, package http
// does not notice that the guest has closed the connection. So await also calls open(). Without
// this check, both requests would be sent if a guest gave up after a time limit and repeated its
// request.
func (l *List) await(w http.ResponseWriter, r *http.Request, e *netproto.Effect, ended <-chan struct{},
	open func() bool) bool {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.waiting--
	}()
	timer, look := time.NewTimer(l.wait), time.NewTicker(lookTime)
	defer timer.Stop()
	defer look.Stop()
	for waits := true; waits; {
		select {
		case <-ended:
			waits = false
		case <-r.Context().Done():
			waits = false
		case <-look.C:
			waits = open()
		case <-timer.C:
			l.set(e, netproto.OutcomeExpired)
			refuse(w, http.StatusGatewayTimeout, netproto.OutcomeExpired, fmt.Sprintf("this request has waited for %v", l.wait))
			return false
		}
	}
	if errors.Is(r.Context().Err(), context.Canceled) || !open() {
		l.set(e, netproto.OutcomeGivenUp)
		w.Header().Set("Connection", "close") // a client that only stopped sending must not get a 200
		refuse(w, http.StatusServiceUnavailable, netproto.OutcomeGivenUp, "the client has closed its side of the connection")
		return false
	}
	l.set(e, netproto.OutcomeSent)
	return true
}

// read returns a request in the form in which it is listed. Afterwards r.Body has the complete body
// again.
func read(w http.ResponseWriter, r *http.Request, url string) (*netproto.Effect, error) {
	e := &netproto.Effect{Unix: time.Now().Unix(), Method: r.Method[:min(len(r.Method), maxMethod)],
		URL: url[:min(len(url), netproto.MaxEffectHead)]}
	e.Truncated = len(url) > len(e.URL)
	left := netproto.MaxEffectHead
	for _, name := range sortedNames(r.Header) {
		for _, value := range r.Header[name] {
			if hides(name) {
				value = "[hidden]"
			}
			line := name + ": " + value
			if left -= len(line); left < 0 {
				e.Truncated = true
				break
			}
			e.Headers = append(e.Headers, line)
		}
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTime)) // never fails
	body, err := io.ReadAll(io.LimitReader(r.Body, netproto.MaxEffectBody+1))
	if err != nil {
		return nil, err
	}
	_ = control.SetReadDeadline(time.Time{})
	e.Body = slices.Clone(body[:min(len(body), netproto.MaxEffectBody)])
	e.Truncated = e.Truncated || len(body) > netproto.MaxEffectBody
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), r.Body), r.Body}
	return e, nil
}

func sortedNames(h http.Header) []string {
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// hides reports whether the value of a header with this name is usually a credential.
func hides(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc([]string{"auth", "cookie", "token", "key", "secret", "password", "credential", "signature"},
		func(part string) bool { return strings.Contains(name, part) })
}

// add puts a request into the list. It returns false if there is no room for the request. It also
// returns false if the request would have to wait, but too many requests wait already.
func (l *List) add(e *netproto.Effect) bool {
	n := int64(overhead + len(e.Method) + len(e.URL) + len(e.Body))
	for _, h := range e.Headers {
		n += int64(len(h)) + 16
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	waits := e.Outcome == netproto.OutcomeWaiting
	if len(l.list) == netproto.MaxEffects || l.bytes+n > netproto.MaxEffectBytes || waits && l.waiting == maxWaiting ||
		!l.take(n, l.bytes+n) {
		l.missed++
		return false
	}
	l.last++
	l.bytes += n
	if waits {
		l.waiting++
	}
	e.ID = l.last
	l.list = append(l.list, e)
	return true
}

// set changes the outcome of a listed request.
func (l *List) set(e *netproto.Effect, outcome string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.Outcome = outcome
}
