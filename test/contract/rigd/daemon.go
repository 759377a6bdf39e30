package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
)

// daemon serves a rig on several addresses. A restart closes them and opens them again.
type daemon struct {
	rig       *apirig.Rig
	addresses []net.Addr
	restarts  sync.Mutex // locked during a restart

	mu        sync.Mutex
	conns     map[net.Conn]bool // open connections
	hijacked  []net.Conn        // connections that were upgraded; some may have ended
	listeners []net.Listener
	server    *http.Server
	closed    bool
	faults    []*fault
	requests  int
	seen      map[string]int // number of requests of each kind, by method and path
}

// fault selects requests and determines how their answers fail.
type fault struct {
	Times  int    `json:"times"`  // number of requests; 0 means 1
	Method string `json:"method"` // empty: every method
	Path   string `json:"path"`   // a regular expression; empty: every path below /v1
	// 429 or 503: send only an error with this status; 0: cut off or stall the answer.
	Status     int  `json:"status"`
	RetryAfter int  `json:"retry_after"` // seconds, with Status; 0: no Retry-After header
	AfterBytes int  `json:"after_bytes"` // if Status is 0: number of bytes of the answer's body that are sent
	Stall      bool `json:"stall"`       // after AfterBytes, leave the connection open without more data; false: close it

	path *regexp.Regexp
}

// faults is the body of POST /_rig/faults.
type faults struct {
	Requests     *fault   `json:"requests"`      // fault of later requests; the faults of several posts apply in order
	FailChildren int      `json:"fail_children"` // number of children that will fail to start
	Restart      *restart `json:"restart"`       // close all connections, and accept new ones later; sandboxes survive
	Clear        bool     `json:"clear"`         // first drop all faults of requests and children
}

type restart struct {
	DownMS int `json:"down_ms"` // milliseconds until connections are accepted again; 0 means 200
}

// state is the answer of GET /_rig/state.
type state struct {
	VMs int `json:"vms"`
	// Open connections, including the connection of this request. Upgraded connections do not
	// count.
	Connections int            `json:"connections"`
	Total       int            `json:"total"`    // requests so far
	Requests    map[string]int `json:"requests"` // number of requests by method and path; Clear resets it
}

func newDaemon(rig *apirig.Rig) *daemon {
	return &daemon{rig: rig, conns: map[net.Conn]bool{}, seen: map[string]int{}}
}

// listen opens an address.
func (d *daemon) listen(network, address string) error {
	l, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	d.addresses = append(d.addresses, l.Addr())
	d.listeners = append(d.listeners, l)
	return nil
}

// serve starts serving on the listeners.
func (d *daemon) serve() {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /_rig/faults", d.setFaults)
	mux.HandleFunc("GET /_rig/state", d.state)
	mux.HandleFunc("/", d.answer)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.server = &http.Server{Handler: mux, ConnContext: auth.WithPeer, Protocols: new(http.Protocols),
		ConnState:         d.connState,
		ReadHeaderTimeout: 10 * time.Second}
	d.server.Protocols.SetHTTP1(true)
	d.server.Protocols.SetUnencryptedHTTP2(true)
	for _, l := range d.listeners {
		go d.server.Serve(l)
	}
}

func (d *daemon) connState(c net.Conn, s http.ConnState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch s {
	case http.StateNew:
		d.conns[c] = true
	case http.StateHijacked:
		delete(d.conns, c)
		d.hijacked = append(d.hijacked, c)
	case http.StateClosed:
		delete(d.conns, c)
	}
}

// away() closes all listeners and connections, including WebSockets.
func (d *daemon) away() {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.server.Close() // an error means that a listener is already closed
	for _, c := range d.hijacked {
		_ = c.Close()
	}
	clear(d.conns)
	d.hijacked = nil
}

func (d *daemon) close() {
	d.restarts.Lock()
	defer d.restarts.Unlock()
	d.closed = true
	d.away()
}

func (d *daemon) restart(down time.Duration) error {
	d.restarts.Lock()
	defer d.restarts.Unlock()
	if d.closed {
		return nil
	}
	d.away()
	time.Sleep(down)
	addresses := d.addresses
	d.addresses, d.listeners = nil, nil
	for _, a := range addresses {
		if err := d.listen(a.Network(), a.String()); err != nil {
			return err
		}
	}
	d.serve()
	return nil
}

func (d *daemon) setFaults(w http.ResponseWriter, r *http.Request) {
	var f faults
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	err := dec.Decode(&f)
	if err == nil {
		err = d.arm(&f)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
	if f.Restart == nil {
		return
	}
	_ = http.NewResponseController(w).Flush() // the answer must be sent before the restart
	down := time.Duration(f.Restart.DownMS) * time.Millisecond
	if down == 0 {
		down = restartGap
	}
	go func() {
		time.Sleep(20 * time.Millisecond) // give the client time to read the answer
		if err := d.restart(down); err != nil {
			fmt.Fprintln(os.Stderr, "rigd: restart:", err)
			os.Exit(1)
		}
	}()
}

// arm checks the faults that a request contains and stores the faults for later requests.
func (d *daemon) arm(f *faults) error {
	if q := f.Requests; q != nil {
		if q.Times == 0 {
			q.Times = 1
		}
		if q.Path == "" {
			q.Path = "^/v1/"
		}
		if q.Status != 0 && q.Status != http.StatusTooManyRequests && q.Status != http.StatusServiceUnavailable {
			return fmt.Errorf("status: %d: want 429 or 503", q.Status)
		}
		var err error
		if q.path, err = regexp.Compile(q.Path); err != nil {
			return fmt.Errorf("path: %w", err)
		}
	}
	d.mu.Lock()
	if f.Clear {
		d.faults = nil
		clear(d.seen)
	}
	if f.Requests != nil {
		d.faults = append(d.faults, f.Requests)
	}
	d.mu.Unlock()
	vms := d.rig.VMs
	vms.Mu.Lock()
	defer vms.Mu.Unlock()
	if f.Clear {
		vms.RestoreErr = nil
	}
	if left := f.FailChildren; left > 0 {
		vms.RestoreErr = func(int) error { // called with the lock of the fake VMs held
			if left--; left < 0 {
				return nil
			}
			return errors.New("the rig was told to fail this child")
		}
	}
	return nil
}

func (d *daemon) state(w http.ResponseWriter, _ *http.Request) {
	d.mu.Lock()
	s := state{Connections: len(d.conns), Total: d.requests, Requests: map[string]int{}}
	for name, n := range d.seen {
		s.Requests[name] = n
	}
	d.mu.Unlock()
	s.VMs = d.rig.VMs.Count()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s) // fails only if the client has left
}

// maxSeen bounds the number of entries in daemon.seen.
const maxSeen = 10000

// answer serves a request of the API, or causes the fault that applies to the request.
func (d *daemon) answer(w http.ResponseWriter, r *http.Request) {
	f := d.due(r)
	switch {
	case f == nil:
		d.rig.Handler.ServeHTTP(w, r)
	case f.Status != 0:
		f.refuse(w)
	default:
		d.rig.Handler.ServeHTTP(&cut{ResponseWriter: w, left: f.AfterBytes, gone: r.Context().Done(), stall: f.Stall}, r)
	}
}

func (d *daemon) due(r *http.Request) *fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requests++
	if name := r.Method + " " + r.URL.Path; len(d.seen) < maxSeen || d.seen[name] > 0 {
		d.seen[name]++
	}
	for i, f := range d.faults {
		if (f.Method == "" || f.Method == r.Method) && f.path.MatchString(r.URL.Path) {
			if f.Times--; f.Times == 0 {
				d.faults = append(d.faults[:i:i], d.faults[i+1:]...)
			}
			return f
		}
	}
	return nil
}

// refuse answers like an overloaded daemon.
func (f *fault) refuse(w http.ResponseWriter) {
	e := apiv1.Error{Message: "too many requests at once; try again", Title: "The daemon is busy", Status: f.Status,
		Detail: "too many requests at once; try again", Code: "busy", Fix: "try again", Type: "about:blank"}
	if f.Status == http.StatusTooManyRequests {
		e.Code, e.Title = "too_many_requests", "The client exceeds its limit"
	}
	w.Header().Set("Content-Type", apiv1.Problem)
	if f.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
	}
	w.WriteHeader(f.Status)
	_ = json.NewEncoder(w).Encode(e) // fails only if the client has left
}

// cut is a ResponseWriter that sends a part of an answer's body and then stops.
type cut struct {
	http.ResponseWriter
	left  int
	stall bool
	gone  <-chan struct{}
	done  bool // the connection is broken
}

var errCut = errors.New("the rig was told to cut the answer")

func (c *cut) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// SetWriteDeadline does nothing once Write has broken the connection with a deadline in the past.
func (c *cut) SetWriteDeadline(t time.Time) error {
	if c.done {
		return nil
	}
	return http.NewResponseController(c.ResponseWriter).SetWriteDeadline(t)
}

func (c *cut) Write(p []byte) (int, error) {
	if len(p) <= c.left {
		c.left -= len(p)
		return c.ResponseWriter.Write(p)
	}
	if c.done {
		return 0, errCut
	}
	_, _ = c.ResponseWriter.Write(p[:c.left]) // fails only if the client has left
	_ = http.NewResponseController(c.ResponseWriter).Flush()
	if c.stall {
		<-c.gone
	}
	// Break the connection, because the client must not see a regular end of the answer. A panic
	// with http.ErrAbortHandler would not always work, because handlers also write in other
	// goroutines.
	_ = c.SetWriteDeadline(time.Unix(1, 0))
	c.done = true
	return c.left, errCut
}
