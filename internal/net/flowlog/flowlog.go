// Package flowlog writes the flow log, which has one JSON line for each ended or refused flow.
//
// Put never waits for the disk. If records arrive faster than they can be written, some are
// dropped, and the next line gives their number. The package opens no file; the daemon sends it the
// descriptor of a file that is open for appending.
package flowlog

import (
	"encoding/json"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Record is the content of one line.
type Record struct {
	Time    time.Time `json:"time"` // when the flow ended
	Sandbox string    `json:"sandbox"`
	Verdict string    `json:"verdict"` // pass or refuse
	Reason  string    `json:"reason"`
	// name of the server that the connection named, or else the name that the guest looked up
	Name       string `json:"name,omitempty"`
	Address    string `json:"address,omitempty"`
	Protocol   string `json:"protocol"` // tcp, udp, icmp or dns
	UpBytes    uint64 `json:"up_bytes"` // payload from the guest
	DownBytes  uint64 `json:"down_bytes"`
	DurationMS int64  `json:"duration_ms"`
	Error      string `json:"error,omitempty"` // why a permitted flow failed to start, or why it ended early
	Lost       uint64 `json:"lost,omitempty"`  // number of dropped records before this one
}

// queued is how many records may wait for the disk.
const queued = 1024

// Log writes records. Use New.
type Log struct {
	records chan Record
	lost    atomic.Uint64

	mu sync.Mutex     // not held during a write, because the disk may be slow
	to io.WriteCloser // if nil, records are discarded
}

// New returns a log without a file. Its goroutine runs until the process exits.
func New() *Log {
	l := &Log{records: make(chan Record, queued)}
	go l.write()
	return l
}

// Set replaces the file. The log closes a file when Set replaces it. After Set(nil) records are
// discarded.
func (l *Log) Set(to io.WriteCloser) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to != nil {
		_ = l.to.Close() // the log buffers nothing, so no data can be lost here
	}
	l.to = to
}

// Put queues a record. If the queue is full, it counts the record as lost.
func (l *Log) Put(r Record) {
	select {
	case l.records <- r:
	default:
		l.Lost()
	}
}

// Lost counts a record that the caller has dropped instead of calling Put.
func (l *Log) Lost() { l.lost.Add(1) }

// Missing returns the number of dropped records that no line has reported yet.
func (l *Log) Missing() uint64 { return l.lost.Load() }

func (l *Log) write() {
	for r := range l.records {
		l.line(&r)
	}
}

// line writes a record as one line. It makes only one call of Write, so that lines of several
// writers are not interleaved.
func (l *Log) line(r *Record) {
	l.mu.Lock()
	to := l.to
	l.mu.Unlock()
	if to == nil {
		return
	}
	r.Lost = l.lost.Load()
	text, err := json.Marshal(r)
	if err != nil {
		return
	}
	if _, err := to.Write(append(text, '\n')); err != nil {
		l.lost.Add(1) // for example the disk is full, or Set has just closed the file
		return
	}
	l.lost.Add(-r.Lost)
}
