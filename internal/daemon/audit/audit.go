// Package audit writes one JSON line per API request: the client, the operation, the sandbox, and
// the result. It gives each request an id, which also appears in the answer and in the daemon's
// log.
//
// It writes no bodies, query strings or tokens, and nothing that is sent to a server in a sandbox.
// It does not rotate the file. Another program renames the file and then sends SIGHUP to the
// daemon, which calls Reopen.
package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Entry is one line of the log.
type Entry struct {
	Time      time.Time `json:"ts"`
	RequestID string    `json:"request_id"`
	Who       string    `json:"who,omitempty"` // name of the auth.Principal; empty if unknown
	Method    string    `json:"method"`
	// Path of the request, without the query, and without the part for a server in a sandbox.
	Path      string   `json:"path"`
	Route     string   `json:"route,omitempty"`     // pattern of the route in the API's document
	Host      string   `json:"host,omitempty"`      // PORT-ID, if the request's host name names a port of a sandbox
	Sandbox   string   `json:"sandbox,omitempty"`   // the sandbox that the request names
	From      string   `json:"from,omitempty"`      // the source of a promoted state, or the older side of a diff
	Sandboxes []string `json:"sandboxes,omitempty"` // the sandboxes that the request made or pruned
	Status    int      `json:"status"`
	LatencyUS int64    `json:"latency_us"`
	UserAgent string   `json:"ua"`
	Remote    string   `json:"remote"` // address of the client; "unix:PID" for a client of the unix socket

	// LeftOut counts the omitted lines before this one. All of them were about strangers, see
	// isStranger.
	LeftOut int `json:"left_out,omitempty"`

	// Lost counts the lines before this one that could not be written.
	Lost int `json:"lost,omitempty"`
}

// SignedURL is the value of Entry.Who for a request whose only credential is a signed URL.
const SignedURL = "signed-url"

// SSH is the value of Entry.Method in lines about SSH.
const SSH = "SSH"

// isStranger reports whether the client of an entry is unidentified, or has only a signed URL.
func (e *Entry) isStranger() bool { return e.Who == "" || e.Who == SignedURL }

// isRefused reports whether the request of an entry was refused.
func (e *Entry) isRefused() bool {
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
		return true
	}
	return e.Who == "" && e.Status >= http.StatusBadRequest
}

// strangersPerSecond is the maximum rate of lines about strangers, and strangersAtOnce is the
// maximum burst. This limit applies separately to refused requests, to refused logins over SSH, and
// to other requests, such as those to a public port of a sandbox. Without this limit, anyone who
// reaches the daemon could fill the disk. The next line that is written has the number of omitted
// lines.
const (
	strangersPerSecond = 10
	strangersAtOnce    = 200
)

// Log appends entries to a file. A nil *Log drops them.
type Log struct {
	path string

	// Rate limits of the lines about strangers: about their refused requests, their other requests,
	// and their SSH logins.
	refused, served, ssh *rate.Limiter

	mu      sync.Mutex
	out     io.WriteCloser
	cut     bool // the file ends with an incomplete line
	leftOut int  // see Entry.LeftOut
	lost    int  // see Entry.Lost
}

// Open opens the log at path. A new file gets mode 0600.
func Open(path string) (*Log, error) {
	strangers := func() *rate.Limiter { return rate.NewLimiter(strangersPerSecond, strangersAtOnce) }
	l := &Log{path: path, refused: strangers(), served: strangers(), ssh: strangers()}
	return l, l.Reopen()
}

// Reopen opens the log's path again after another program has renamed the file.
func (l *Log) Reopen() error {
	if l == nil {
		return nil
	}
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	cut := endsAmidLine(f) // true if a daemon was killed while it wrote, or the disk was full
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.out != nil {
		l.out.Close()
	}
	l.out, l.cut = f, cut
	return nil
}

// endsAmidLine reports whether f is a regular file whose last byte is not a line feed.
func endsAmidLine(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return false
	}
	last := make([]byte, 1)
	_, err = f.ReadAt(last, info.Size()-1)
	return err == nil && last[0] != '\n'
}

// maxField is the maximum size in bytes of a field whose text the client chooses. The other fields
// need no bound, because the daemon or the kernel makes them.
const maxField = 1024

// Write appends e as one line, with a single write call.
func (l *Log) Write(e Entry) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.isStranger() {
		lines := l.served
		switch {
		case e.Method == SSH:
			lines = l.ssh
		case e.isRefused():
			lines = l.refused
		}
		if !lines.Allow() {
			l.leftOut++
			return nil
		}
	}
	return l.writeLocked(e)
}

// writeLocked writes a line with the counts of the missing lines before it. If the file ends with
// an incomplete line, writeLocked begins a new one.
func (l *Log) writeLocked(e Entry) error {
	e.Time, e.LeftOut, e.Lost = e.Time.UTC(), l.leftOut, l.lost
	for _, field := range []*string{&e.Method, &e.Path, &e.UserAgent, &e.Sandbox, &e.Host, &e.Who} {
		*field = strings.ToValidUTF8((*field)[:min(len(*field), maxField)], "?")
	}
	var line bytes.Buffer
	if l.cut {
		line.WriteByte('\n')
	}
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false) // the log is not embedded in HTML, and escaping would turn '<' into six bytes
	if err := enc.Encode(e); err != nil {
		return fmt.Errorf("write audit log: %w", err)
	}
	if n, err := l.out.Write(line.Bytes()); err != nil {
		l.lost++
		if n > 0 {
			l.cut = line.Bytes()[n-1] != '\n'
		}
		return fmt.Errorf("write audit log: %w", err)
	}
	l.cut, l.leftOut, l.lost = false, 0, 0
	return nil
}

// Close closes the file. If lines are missing at the end, Close first writes their counts.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if l.leftOut > 0 || l.lost > 0 {
		err = l.writeLocked(Entry{Time: time.Now()})
	}
	return errors.Join(err, l.out.Close())
}
