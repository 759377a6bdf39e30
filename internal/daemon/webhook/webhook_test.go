package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/host/event"
)

// key is the key of the secret in test files.
var key = []byte("0123456789abcdef0123456789abcdef")

func secretOf(key []byte) string { return secretPrefix + base64.StdEncoding.EncodeToString(key) }

// request is a request that a server has received.
type request struct {
	id   string
	body apiv1.Event
}

// receiver is a server that verifies the signature of each request.
type receiver struct {
	*httptest.Server
	got chan request // requests that the server has accepted
	// answer, if set, may answer a request. If it returns false, the server accepts the request.
	answer func(w http.ResponseWriter, r *http.Request, got request) bool
}

func receive(t *testing.T, start func(http.Handler) *httptest.Server) *receiver {
	t.Helper()
	s := &receiver{got: make(chan request, 10_000)}
	s.Server = start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		got := request{id: r.Header.Get("webhook-id")}
		if err := verify(r.Header, text, key); err != nil {
			t.Error(err)
		}
		if err != nil || json.Unmarshal(text, &got.body) != nil {
			t.Errorf("%q, %v", text, err)
		}
		if r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" ||
			r.Header.Get("User-Agent") != "forkd/1.2.3" {
			t.Errorf("%s, %v", r.Method, r.Header)
		}
		if s.answer == nil || !s.answer(w, r, got) {
			w.WriteHeader(http.StatusNoContent)
			s.got <- got
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// verify checks a signature as the specification of Standard Webhooks says, without the code under
// test.
func verify(h http.Header, body, key []byte) error {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(h.Get("webhook-id") + "." + h.Get("webhook-timestamp") + "."))
	mac.Write(body)
	for one := range strings.SplitSeq(h.Get("webhook-signature"), " ") {
		if one == "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)) {
			return nil
		}
	}
	return fmt.Errorf("no signature of %s is valid: %s", h.Get("webhook-id"), h.Get("webhook-signature"))
}

func (s *receiver) next(t *testing.T) request {
	t.Helper()
	select {
	case r := <-s.got:
		return r
	case <-t.Context().Done():
		t.Fatal("no message")
		return request{}
	}
}

// want reads one message for each argument. The argument has the expected type of the message, and
// its expected reason or sandbox.
func (s *receiver) want(t *testing.T, want ...string) (got []request) {
	t.Helper()
	for _, text := range want {
		r := s.next(t)
		got = append(got, r)
		if have := r.body.Type + " " + r.body.Reason + r.body.SandboxID; have != text {
			t.Fatalf("got %q, want %q", have, text)
		}
		if r.body.Time.IsZero() || r.body.ID == "" || r.id != r.body.ID && !strings.HasPrefix(r.id, "missed-"+r.body.ID) {
			t.Errorf("%+v", r)
		}
	}
	return got
}

// counts records what a webhook reports to the metrics.
type counts struct {
	mu             sync.Mutex
	accepted, fail int
	lost           []string
}

func (c *counts) WebhookSent(accepted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if accepted {
		c.accepted++
	} else {
		c.fail++
	}
}

func (c *counts) WebhookLost(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = append(c.lost, reason)
}

// write writes a file that only its owner can read.
func write(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// open opens webhooks. Missing names and secrets are added. Failed requests are repeated at once.
func open(t *testing.T, hooks ...settings) *Set {
	t.Helper()
	var list []map[string]any
	for i, s := range hooks {
		one := map[string]any{"name": fmt.Sprintf("hook-%d", i), "url": s.URL, "secret_file": s.SecretFile,
			"types": s.Types, "labels": s.Labels, "ca_file": s.CAFile}
		if s.SecretFile == "" {
			one["secret_file"] = write(t, secretOf(key)+"\n")
		}
		list = append(list, one)
	}
	text, err := json.Marshal(map[string]any{"webhooks": list})
	if err != nil {
		t.Fatal(err)
	}
	set, err := Open(write(t, string(text)), "1.2.3", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range set.hooks {
		h.pace = pace{timeout: time.Hour, first: 1, most: 1, giveUp: time.Hour}
	}
	return set
}

// followed is a tenancy.Events of a principal that may see all events.
type followed struct {
	*event.Follower
	ring *event.Ring
}

func (f followed) ID(e *event.Event) string { return f.ring.ID(e.Seq) }

// follow returns a function that follows a ring from an unknown place.
func follow(ring *event.Ring) func() Events {
	return func() Events { return followed{ring.Follow("none"), ring} }
}

// run runs webhooks until the test ends, or until the function that it returns is called.
func run(t *testing.T, set *Set, ring *event.Ring) (c *counts, stop func()) {
	t.Helper()
	c = &counts{}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { set.Run(ctx, follow(ring), c) })
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return c, stop
}

func emit(ring *event.Ring, sandboxes ...string) {
	for _, id := range sandboxes {
		ring.Emit(event.Event{Kind: event.SandboxCreated, Sandbox: id})
	}
}

// authority writes the certificate of a server as a file of authorities.
func authority(t *testing.T, s *receiver) (path string) {
	t.Helper()
	return write(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
}

// Messages arrive in order, without and with TLS. The first message says that events of earlier
// daemons may be missing.
func TestDelivery(t *testing.T) {
	plain, secure := receive(t, httptest.NewServer), receive(t, httptest.NewTLSServer)
	set := open(t, settings{URL: plain.URL + "/in?x=1"}, settings{URL: secure.URL, CAFile: authority(t, secure)})
	ring := event.NewRing(event.DefaultSize)
	emit(ring, "before")
	_, stop := run(t, set, ring)
	emit(ring, "a", "b")
	ring.Emit(event.Event{Kind: event.SandboxExited, Sandbox: "a", Snapshot: "s", Labels: map[string]string{"l": "v"},
		Detail: strings.Repeat("\x00", 1<<20)})
	for _, s := range []*receiver{plain, secure} {
		got := s.want(t, "missed start", "sandbox.created before", "sandbox.created a", "sandbox.created b",
			"sandbox.exited a")
		last := got[4].body
		if last.SnapshotTag != "s" || last.Labels["l"] != "v" || len(last.Detail) != maxDetail {
			t.Errorf("%+v", last)
		}
		ids := map[string]bool{}
		for _, r := range got {
			ids[r.id] = true
		}
		if len(ids) != len(got) {
			t.Errorf("ids are not unique: %v", ids)
		}
	}
	stop()

	// The next daemon has another ring.
	ring = event.NewRing(event.DefaultSize)
	emit(ring, "adopted")
	run(t, set, ring)
	plain.want(t, "missed start", "sandbox.created adopted")
	secure.want(t, "missed start", "sandbox.created adopted")
}

// A server without a trusted certificate receives nothing.
func TestUntrustedServer(t *testing.T) {
	s := receive(t, httptest.NewTLSServer)
	set := open(t, settings{URL: s.URL})
	h := set.hooks[0]
	if _, err := h.send(t.Context(), "x", []byte("{}")); err == nil || strings.Contains(err.Error(), "POST") {
		t.Errorf("sent: %v", err)
	}
	if len(s.got) != 0 {
		t.Error("the server received a message")
	}
}

// A failed request is repeated with the same id, before later events are sent.
func TestRetry(t *testing.T) {
	s := receive(t, httptest.NewServer)
	var tried []string
	s.answer = func(w http.ResponseWriter, _ *http.Request, got request) bool {
		tried = append(tried, got.id)
		if len(tried) != 2 && len(tried) != 3 {
			return false
		}
		w.Header().Set("Retry-After", "1000")
		w.WriteHeader([]int{http.StatusInternalServerError, http.StatusTooManyRequests}[len(tried)-2])
		return true
	}
	set := open(t, settings{URL: s.URL})
	ring := event.NewRing(event.DefaultSize)
	emit(ring, "a", "b")
	c, stop := run(t, set, ring)
	got := s.want(t, "missed start", "sandbox.created a", "sandbox.created b")
	emit(ring, "c")
	s.want(t, "sandbox.created c") // the webhook has counted the answers to all earlier requests
	stop()
	want := []string{got[0].id, got[1].id, got[1].id, got[1].id, got[2].id}
	if !slices.Equal(tried[:len(tried)-1], want) {
		t.Errorf("requests %v, want %v", tried, want)
	}
	if c.accepted < 3 || c.fail != 2 || len(c.lost) != 0 {
		t.Errorf("%+v", c)
	}
}

// A server cannot redirect a webhook to another server.
func TestRedirect(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("a redirect was followed")
	}))
	defer other.Close()
	s := receive(t, httptest.NewServer)
	codes := []int{301, 302, 303, 307, 308}
	s.answer = func(w http.ResponseWriter, r *http.Request, _ request) bool {
		if len(codes) == 0 {
			return false
		}
		http.Redirect(w, r, other.URL, codes[0])
		codes = codes[1:]
		return true
	}
	set := open(t, settings{URL: s.URL})
	c, stop := run(t, set, event.NewRing(4))
	s.want(t, "missed start")
	stop()
	if c.fail != 5 {
		t.Errorf("%d requests failed, want 5", c.fail)
	}
}

// If one server does not answer and another server is gone, neither events nor messages to other
// servers are delayed. The webhook stores no events, so the server learns later that it missed
// events.
func TestSlowServer(t *testing.T) {
	slow, fast := receive(t, httptest.NewServer), receive(t, httptest.NewServer)
	gone := httptest.NewServer(nil) // started after the other servers, so that none of them gets its port
	gone.Close()
	stuck, release := make(chan struct{}), make(chan struct{})
	slow.answer = func(_ http.ResponseWriter, _ *http.Request, got request) bool {
		if got.body.SandboxID == "0" {
			close(stuck)
			<-release
		}
		return false
	}
	set := open(t, settings{URL: slow.URL}, settings{URL: fast.URL}, settings{URL: gone.URL})
	set.hooks[2].pace = usual()
	const size, many = 4, 100
	ring := event.NewRing(size)
	c, stop := run(t, set, ring)
	fast.want(t, "missed start")
	for i := range many {
		emit(ring, fmt.Sprint(i))
		fast.want(t, fmt.Sprint("sandbox.created ", i))
		if i == 0 {
			<-stuck
		}
	}
	close(release)
	slow.want(t, "missed start", "sandbox.created 0", "missed overflow", "sandbox.created 96", "sandbox.created 97",
		"sandbox.created 98", "sandbox.created 99")
	stop()
	if !slices.Equal(c.lost, []string{lostOverflow}) {
		t.Errorf("losses: %v", c.lost)
	}
}

// After 410 Gone, a server receives no more requests.
func TestGone(t *testing.T) {
	s := receive(t, httptest.NewServer)
	requests := 0
	s.answer = func(w http.ResponseWriter, _ *http.Request, _ request) bool {
		requests++
		w.WriteHeader(http.StatusGone)
		return true
	}
	set := open(t, settings{URL: s.URL})
	ring := event.NewRing(4)
	emit(ring, "a")
	set.Run(t.Context(), follow(ring), &counts{}) // returns before its context ends
	if requests != 1 {
		t.Errorf("%d requests", requests)
	}
}

// A webhook can stop while a server does not answer, and while the webhook waits before its next
// attempt.
func TestStop(t *testing.T) {
	s := receive(t, httptest.NewServer)
	asked, end := make(chan struct{}, 1), make(chan struct{})
	defer close(end)
	s.answer = func(http.ResponseWriter, *http.Request, request) bool {
		asked <- struct{}{}
		<-end
		return true
	}
	set := open(t, settings{URL: s.URL})
	c, stop := run(t, set, event.NewRing(4))
	<-asked
	stop()
	if c.fail != 0 {
		t.Error("a stop counts as a failure")
	}

	failed := receive(t, httptest.NewServer)
	failed.answer = func(w http.ResponseWriter, _ *http.Request, _ request) bool {
		w.WriteHeader(http.StatusInternalServerError)
		asked <- struct{}{}
		return true
	}
	set = open(t, settings{URL: failed.URL})
	set.hooks[0].pace = pace{timeout: time.Hour, first: time.Hour, most: time.Hour, giveUp: time.Hour}
	_, stop = run(t, set, event.NewRing(4))
	<-asked
	stop()
}

// If a server does not answer, the request ends at its time limit. Of an endless answer, only the
// status and the first bytes are read.
func TestHostileAnswers(t *testing.T) {
	s := receive(t, httptest.NewServer)
	s.answer = func(w http.ResponseWriter, _ *http.Request, got request) bool {
		switch got.id {
		case "endless":
			for w, p := io.Writer(w), bytes.Repeat([]byte("x"), 64<<10); ; {
				if _, err := w.Write(p); err != nil {
					break
				}
			}
		case "header":
			w.Header().Set("X", strings.Repeat("x", 1<<20))
		}
		return true
	}
	set := open(t, settings{URL: s.URL})
	h := set.hooks[0]
	if _, err := h.send(t.Context(), "endless", []byte("{}")); err != nil {
		t.Errorf("an endless answer: %v", err)
	}
	if _, err := h.send(t.Context(), "header", []byte("{}")); err == nil {
		t.Error("a header of 1 MiB is accepted")
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts connections, and no program reads them
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	set = open(t, settings{URL: "http://" + silent.Addr().String()})
	h = set.hooks[0]
	h.pace.timeout = time.Millisecond
	if _, err := h.send(t.Context(), "x", []byte("{}")); err == nil {
		t.Error("there is no time limit")
	}
}

func TestFilter(t *testing.T) {
	s := receive(t, httptest.NewServer)
	set := open(t, settings{URL: s.URL, Types: []string{"sandbox.exited", "sandbox.deleted"},
		Labels: []string{"team=a", "env"}})
	ring := event.NewRing(event.DefaultSize)
	run(t, set, ring)
	for id, labels := range []map[string]string{nil, {"team": "a"}, {"team": "b", "env": "x"}, {"team": "a", "env": "x"}} {
		for _, kind := range []event.Kind{event.SandboxCreated, event.SandboxExited, event.SandboxDeleted} {
			ring.Emit(event.Event{Kind: kind, Sandbox: fmt.Sprint(id), Labels: labels})
		}
	}
	s.want(t, "missed start", "sandbox.exited 3", "sandbox.deleted 3")
}
